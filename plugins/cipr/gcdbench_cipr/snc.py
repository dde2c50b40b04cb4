"""Selective neighbour clustering: a hierarchy of partitions, from fine to coarse, and any number of clusters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcdbench import IntArray
from gcdbench.errors import UsageError
from gcdbench_cipr.neighbours import Links, chained, in_order, nearest_other

LARGEST = 20_000
"""Rows that are joined from each row alone, at most: similarities of all pairs are in memory (3 GB)."""


@dataclass(frozen=True)
class Hierarchy:
    """Partitions of rows, each a coarser one than that before it."""

    features: Tensor
    target: IntArray
    """Class of each labelled row, -1 elsewhere."""
    levels: tuple[IntArray, ...]
    """Cluster of each row, numbered by their first row."""

    @property
    def counts(self) -> list[int]:
        """Clusters of each level."""
        return [int(level.max()) + 1 for level in self.levels]

    def cut(self, clusters: int) -> IntArray:
        """A partition with this number of clusters, or the nearest number above it that the labels allow."""
        labels = self.from_level(clusters)
        for coarser in self.joined(labels, clusters):
            labels = coarser
        return labels

    def from_level(self, clusters: int) -> IntArray:
        """The last level with at least this many clusters; if there is none, each row alone."""
        enough = [level for level, count in zip(self.levels, self.counts, strict=True) if count >= clusters]
        if not enough and len(self.target) > LARGEST:
            raise UsageError(
                f"CiPR's finest partition has {self.counts[0]:,} clusters, fewer than the {clusters:,} asked for; to "
                f"join {len(self.target):,} single rows takes a table of all their pairs. Ask for fewer (--k)."
            )
        return enough[-1] if enough else np.arange(len(self.target))

    def joined(self, labels: IntArray, clusters: int, distances: list[float] | None = None) -> Iterator[IntArray]:
        """Join the linked pair with the smallest distance, one at a time, until this many clusters are left.

        ``distances`` is filled with those of the joins.
        """
        merging = Merging.of(self.features, self.target, labels)
        while merging.count > clusters:
            distance = merging.join()
            if distance is None:  # every cluster is a chain of its own class: there is nothing to join
                return
            if distances is not None:
                distances.append(distance)
            yield merging.labels()


def hierarchy(features: Tensor, target: IntArray) -> Hierarchy:
    """All levels. A level that joins nothing, or leaves a single cluster, is not one; one that joins a single pair is
    the last."""
    links = Links.of(chained(nearest_other(features), features, target), features)
    levels, limit = [links.groups(len(features))], links.longest
    while True:
        last = levels[-1]
        count = int(last.max()) + 1
        rows, classes = means_of(features, last), classes_of(last, target)
        links = Links.of(chained(nearest_other(rows), rows, classes), rows).at_most(limit)
        coarser = links.groups(count)[last]
        left = int(coarser.max()) + 1
        if left in (count, 1):
            break
        levels.append(coarser)
        if left == count - 1:
            break
    return Hierarchy(features, target, tuple(levels))


def means_of(features: Tensor, labels: IntArray) -> Tensor:
    """(clusters, dim) plain means of the rows of each cluster, in double precision."""
    number = torch.from_numpy(labels).to(features.device)
    count = int(labels.max()) + 1
    wide = features.double()
    total = wide.new_zeros((count, features.shape[1])).index_add_(0, number, wide)
    return total / torch.bincount(number, minlength=count)[:, None]


def classes_of(labels: IntArray, target: IntArray) -> IntArray:
    """The most frequent class of the labelled rows of each cluster, the smallest among equals; -1 where there are
    none."""
    known = target >= 0
    if not known.any():
        return np.full(int(labels.max()) + 1, -1, dtype=np.int64)
    table = np.zeros((int(labels.max()) + 1, int(target.max()) + 1), dtype=np.int64)
    np.add.at(table, (labels[known], target[known]), 1)
    return np.where(table.any(1), table.argmax(1), -1)


@dataclass
class Merging:
    """Clusters that are joined one pair at a time. A cluster keeps the number it had at the beginning, and only what a
    join changes is computed again: sum, class, one line of similarities, and the nearest one of those that lost it."""

    own: IntArray
    """Cluster of each row."""
    alive: IntArray
    """Those numbers that are left, in the order of the clusters' first rows."""
    total: Tensor
    """(clusters, dim) sums of the clusters' rows; a direction is all that counts."""
    tally: NDArray[np.int64]
    """(clusters, classes) labelled rows of each cluster."""
    unit: NDArray[np.float64]
    """(clusters, dim) directions."""
    similar: NDArray[np.float64] = field(repr=False)
    """(clusters, clusters) cosines; minus infinity on the diagonal and for clusters that are gone."""
    nearest: IntArray = field(repr=False)
    """The most similar other cluster of each, the first among equals."""

    @staticmethod
    def of(features: Tensor, target: IntArray, labels: IntArray) -> Merging:
        """At a partition."""
        labels = in_order(labels)
        count, known = int(labels.max()) + 1, target >= 0
        total = means_of(features, labels).cpu() * torch.from_numpy(np.bincount(labels))[:, None]
        tally = np.zeros((count, max(1, int(target.max(initial=-1)) + 1)), dtype=np.int64)
        np.add.at(tally, (labels[known], target[known]), 1)
        unit = torch.nn.functional.normalize(total, dim=1).numpy()
        similar = unit @ unit.T
        np.fill_diagonal(similar, -np.inf)
        return Merging(labels, np.arange(count), total, tally, unit, similar, similar.argmax(1))

    @property
    def count(self) -> int:
        """Clusters that are left."""
        return len(self.alive)

    def labels(self) -> IntArray:
        """Cluster of each row now."""
        return in_order(self.own)

    def join(self) -> float | None:
        """Join the nearest linked pair; its distance, or None if no two clusters are linked."""
        alive = self.alive
        tally, total = self.tally[alive], self.total[torch.from_numpy(alive)]
        classes = np.where(tally.any(1), tally.argmax(1), -1)
        nearest = np.searchsorted(alive, self.nearest[alive]) if len(alive) > 1 else np.zeros(1, dtype=np.int64)
        links = Links.of(chained(nearest, total, classes), total)
        if not len(links.first):
            return None
        best = int(links.distance.argmin())
        self._merge(int(alive[links.first[best]]), int(alive[links.second[best]]))
        return float(links.distance[best])

    def _merge(self, one: int, two: int) -> None:
        """The second goes into the first, which has the earlier first row."""
        self.own[self.own == two] = one
        self.alive = alive = self.alive[self.alive != two]
        self.total[one] += self.total[two]
        self.tally[one] += self.tally[two]
        self.unit[one] = torch.nn.functional.normalize(self.total[one], dim=0).numpy()
        self.similar[two], self.similar[:, two] = -np.inf, -np.inf
        line = self.unit[alive] @ self.unit[one]
        line[alive == one] = -np.inf
        self.similar[one, alive], self.similar[alive, one] = line, line
        lost = alive[np.isin(self.nearest[alive], (one, two)) | (alive == one)]
        self.nearest[lost] = self.similar[lost].argmax(1)
        others = alive[line > self.similar[alive, self.nearest[alive]]]
        self.nearest[others] = one
        level = alive[(line == self.similar[alive, self.nearest[alive]]) & (self.nearest[alive] > one) & (alive != one)]
        self.nearest[level] = one
