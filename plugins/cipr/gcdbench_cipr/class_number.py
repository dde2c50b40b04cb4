"""The number of classes: the partition that suits held-back base classes and whose clusters are well apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import silhouette_score
from sklearn.metrics.pairwise import cosine_distances
from torch import Tensor

from gcdbench import IntArray
from gcdbench_cipr.snc import hierarchy

SHOWN = 0.8
"""Share of the base classes whose labels the clustering sees; the authors have 0.6 on CIFAR-10."""
SAMPLE = 2048
"""Rows on which silhouettes are computed, at most."""


@dataclass(frozen=True)
class Scored:
    """Partitions with what speaks for them."""

    counts: list[int]
    silhouette: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    @property
    def score(self) -> NDArray[np.float64]:
        """Both, scaled to 0..1 over these partitions, multiplied."""
        found: NDArray[np.float64] = scaled(self.silhouette) * scaled(self.accuracy)
        return found

    def best(self, smallest: int, largest: int) -> int | None:
        """The number of clusters with the best score from ``smallest`` to ``largest``; None if there is none."""
        fits = [smallest <= count <= largest for count in self.counts]
        return self.counts[int(np.where(fits, self.score, -np.inf).argmax())] if any(fits) else None


@dataclass(frozen=True)
class ClassNumber:
    """What was found and how."""

    k: int
    levels: Scored
    merges: Scored
    between: tuple[int, int]
    """The levels between which pairs were joined."""

    @property
    def tried(self) -> dict[int, float]:
        """The score of each number of clusters of the second search."""
        return {count: float(score) for count, score in zip(self.merges.counts, self.merges.score, strict=True)}


def class_number(
    features: Tensor, target: IntArray, base: int, within: tuple[int, int], shown: float = SHOWN
) -> ClassNumber:
    """The best number of clusters ``within`` smallest and largest: first among the levels of the hierarchy, then among
    the partitions between those before and after the best one."""
    smallest, largest = within
    seen = np.where(target < int(shown * base), target, -1)
    found = hierarchy(features, seen)
    judge = partial(_judged, features.cpu().numpy(), target, seen)
    levels = judge(list(found.levels))
    best = int(levels.score.argmax())
    before, after = max(0, best - 1), min(len(found.levels) - 1, best + 1)
    # Scores are scaled over all partitions, so that the range that is asked for does not move the best one.
    partitions = list(found.joined(found.levels[before], found.counts[after]))
    merges = judge(partitions or [found.levels[best]])
    k = merges.best(smallest, largest) or merges.counts[int(merges.score.argmax())]
    return ClassNumber(min(max(k, smallest), largest), levels, merges, (before, after))


def _judged(features: NDArray[np.float32], target: IntArray, seen: IntArray, partitions: list[IntArray]) -> Scored:
    hidden, held_back = seen < 0, (seen < 0) & (target >= 0)
    counts = [int(labels.max()) + 1 for labels in partitions]
    sample = np.flatnonzero(hidden)[np.random.RandomState(0).permutation(int(hidden.sum()))[:SAMPLE]]
    distances = cosine_distances(features[sample])  # once for all partitions
    apart = [_silhouette(distances, labels[sample]) for labels in partitions]
    right = [_accuracy(labels[held_back], target[held_back]) for labels in partitions]
    return Scored(counts, np.array(apart), np.array(right))


def _silhouette(distances: NDArray[np.float64], labels: IntArray) -> float:
    """Of rows whose distances are known; -1 where there is one cluster, or as many as rows."""
    if not 1 < len(np.unique(labels)) < len(labels):
        return -1.0
    return float(silhouette_score(distances, labels, metric="precomputed"))


def _accuracy(labels: IntArray, target: IntArray) -> float:
    """Share of the rows that the best one-to-one assignment of clusters to classes puts right."""
    if not len(labels):
        return 0.0
    table = np.zeros((int(labels.max()) + 1, int(target.max()) + 1), dtype=np.int64)
    np.add.at(table, (labels, target), 1)
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / len(labels))


def scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """To 0..1; equal values are all 1."""
    low, high = values.min(), values.max()
    found: NDArray[np.float64] = (values - low) / (high - low) if high > low else np.ones_like(values)
    return found
