"""Prototypes of an epoch: clusters that are split and merged, and the temperature that each one's density asks for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gcdbench.toolbox.kmeans import kmeans, semi_supervised_kmeans
from gcdbench.toolbox.losses import in_float32
from gcdbench_gpc.niw import Floats, Prior

Ints = NDArray[np.int64]
Halves = Callable[[int, Floats], tuple[Ints, Floats]]
"""Cluster number and rows to which half each row is in, and the centres of both."""


@dataclass(frozen=True)
class Rules:
    """How splits and merges are decided."""

    clean_merges: bool
    accept: float
    min_rows: int


@dataclass
class Decisions:
    """What was tested, and how it came out."""

    split: dict[int, bool] = field(default_factory=dict)
    split_gain: dict[int, float] = field(default_factory=dict)
    """NaN where there were too few rows for a test."""
    merge: dict[int, bool] = field(default_factory=dict)
    merge_gain: dict[int, float] = field(default_factory=dict)
    merge_with: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Clustering:
    """Rows, the cluster of each, and centres; clusters below ``classes`` are those of base classes."""

    rows: Floats
    labels: Ints
    centres: Floats
    classes: int

    def of(self, cluster: int) -> Floats:
        """The rows of a cluster."""
        return np.asarray(self.rows[self.labels == cluster])

    @property
    def novel(self) -> list[int]:
        """Clusters that may be split and merged."""
        return list(range(self.classes, len(self.centres)))


def split_and_merge(
    found: Clustering, prior: Prior, halves: Halves, coins: Iterator[float], rules: Rules
) -> tuple[Floats, Decisions]:
    """New centres: base classes, clusters that stay, halves of those that were split, and merged ones.

    Each novel cluster is tested for a split, each one that stays whole for a merge with its nearest neighbour. A test
    that does not succeed by itself is accepted with a small probability.
    """
    decisions = Decisions()
    parts: list[Floats] = []
    for cluster in found.novel:
        own = functools.partial(halves, cluster)
        accepted, gain, centres = _split(found.of(cluster), prior, own, coins, rules)
        decisions.split[cluster], decisions.split_gain[cluster] = accepted, gain
        if accepted:
            parts.append(centres)
    whole = [c for c in found.novel if not decisions.split[c]]
    merged = _merge(found, prior, whole, coins, rules, decisions)
    gone = {c for pair in merged for c in pair} if rules.clean_merges else set()
    kept = found.centres[[*range(found.classes), *(c for c in whole if c not in gone)]]
    means = [(found.centres[a] + found.centres[b]) / 2 for a, b in merged]
    if rules.clean_merges:  # one cluster in place of two: the mean of its rows
        means = [np.concatenate([found.of(a), found.of(b)]).mean(0) for a, b in merged]
    return np.concatenate([kept, *parts, *(mean[None] for mean in means)]), decisions


def _split(
    rows: Floats,
    prior: Prior,
    halves: Callable[[Floats], tuple[Ints, Floats]],
    coins: Iterator[float],
    rules: Rules,
) -> tuple[bool, float, Floats]:
    if len(rows) <= rules.min_rows:
        return False, float("nan"), rows[:0]
    side, _ = halves(rows)
    first, second = rows[side == 0], rows[side == 1]
    if min(len(first), len(second)) <= rules.min_rows:
        return False, float("nan"), rows[:0]
    gain = prior.split_gain(first, second)
    accepted = gain > 0 or next(coins) < rules.accept
    return accepted, gain, np.stack([prior.centre(first), prior.centre(second)])


def _merge(
    found: Clustering, prior: Prior, whole: Sequence[int], coins: Iterator[float], rules: Rules, decisions: Decisions
) -> list[tuple[int, int]]:
    """Pairs to be merged. With clean merges no cluster is in two of them, and empty ones are in none."""
    if rules.clean_merges:
        whole = [c for c in whole if (found.labels == c).any()]
    if len(whole) < 2:
        return []
    centres = found.centres[list(whole)]
    apart = ((centres[:, None] - centres[None]) ** 2).sum(2)
    np.fill_diagonal(apart, np.inf)
    merged: list[tuple[int, int]] = []
    taken: set[int] = set()
    for place, cluster in enumerate(whole):
        other = whole[int(apart[place].argmin())]
        if rules.clean_merges and {cluster, other} & taken:
            continue
        pair = (found.centres[cluster], found.centres[other])
        gain = prior.merge_gain(found.of(cluster), found.of(other), pair)
        accepted = gain > 0 or next(coins) < rules.accept
        decisions.merge[cluster], decisions.merge_gain[cluster] = accepted, gain
        decisions.merge_with[cluster] = other
        if accepted:
            merged.append((cluster, other))
            taken |= {cluster, other}
    return merged


@dataclass(frozen=True)
class Prototypes:
    """What the steps of an epoch need."""

    centres: Tensor
    """(prototypes, dim) of length one."""
    density: Tensor
    """(prototypes,) temperature of each."""
    assignment: Tensor
    """(rows,) prototype of each row."""


def prototypes(rows: Tensor, target: Ints, centres: Tensor, temperature: float) -> Prototypes:
    """Rows go to the nearest centre, labelled ones to their class; dense prototypes get a low temperature."""
    known = torch.from_numpy(target).to(rows.device)
    assignment = torch.where(known >= 0, known, torch.cdist(rows, centres).argmin(1))
    distance = (rows - centres[assignment]).norm(dim=1)
    sums = torch.zeros(len(centres), dtype=distance.dtype, device=rows.device).index_add_(0, assignment, distance)
    counts = torch.bincount(assignment, minlength=len(centres))
    return Prototypes(F.normalize(centres, dim=1), densities(sums, counts, temperature), assignment)


def densities(sums: Tensor, counts: Tensor, temperature: float) -> Tensor:
    """Mean distance over the log of the number of rows, clipped to the middle four fifths and scaled to the mean.

    A prototype of one row counts as the least dense one. As released, one without rows has none, and where more than a
    tenth of them is empty the smallest density is 0: see `guarded`.
    """
    values = sums / counts.clamp(min=1) / torch.log(counts + 10.0)
    several = counts > 1
    largest = values.masked_fill(~several, 0.0).max()
    values = torch.where(several, values, torch.where(counts == 1, largest, 0.0))
    low, high = np.percentile(values.cpu().numpy(), [10, 90])
    values = values.clamp(float(low), float(high))
    mean = values.mean()
    return temperature * values / torch.where(mean > 0, mean, 1.0)


def guarded(density: Tensor) -> Tensor:
    """No density is 0, by which the loss divides: the smallest positive one stands in, or 1 where there is none."""
    positive = density > 0
    smallest = density.masked_fill(~positive, torch.inf).min()
    return torch.where(positive, density, torch.where(smallest.isfinite(), smallest, 1.0))


@in_float32
def prototype_loss(features: Tensor, centres: Tensor, density: Tensor, assigned: Tensor) -> Tensor:
    """Mean cross entropy of both views of each row with its prototype; features are normalised here."""
    logits = F.normalize(features, dim=1) @ centres.T / density
    return F.cross_entropy(logits, assigned.repeat(2))


def coins_from(generator: torch.Generator) -> Iterator[float]:
    """Uniform numbers without an end."""
    while True:
        yield float(torch.rand((), generator=generator, dtype=torch.float64))


def cluster(
    rows: Tensor, target: Ints, clusters: int, generator: torch.Generator, restarts: int, iterations: int
) -> Clustering:
    """Semi-supervised k-means; the clusters of base classes come first."""
    known = torch.from_numpy(target)
    found = semi_supervised_kmeans(rows, known, clusters, generator, restarts=restarts, iterations=iterations)
    labels, centres = found.labels.cpu().numpy(), found.centres.cpu().double().numpy()
    return Clustering(rows.cpu().double().numpy(), labels, centres, int(target.max(initial=-1)) + 1)


def by_two_means(generator: torch.Generator, restarts: int) -> Halves:
    """Halves by k-means with two clusters."""

    def halves(_: int, rows: Floats) -> tuple[Ints, Floats]:
        found = kmeans(torch.from_numpy(rows).float(), 2, generator, restarts=restarts)
        return found.labels.numpy(), found.centres.double().numpy()

    return halves
