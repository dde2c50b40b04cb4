"""InfoSieve's semi-supervised k-means: clusters of limited size first, then without limits.

As released, quirks included; `clean` balances as it seems to be meant. Distances are taken on the features' device, the
bookkeeping of rows on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcdbench.toolbox.kmeans import cluster_means

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
STANDSTILL = 1e-4
SAME = 1e-5
"""Relative difference of inertias that counts as none."""


@dataclass(frozen=True)
class Rows:
    """Features and what is known of them."""

    features: Tensor
    target: Ints
    """Class of each labelled row, from 0 without a gap; -1 elsewhere."""
    clusters: int
    size: int | None
    """Rows of a cluster in the first loop, or no limit."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """Labelled rows."""
        return self.target >= 0

    @property
    def classes(self) -> int:
        """Base classes that have labelled rows."""
        return int(self.target.max(initial=-1)) + 1

    def distances(self, centres: Tensor) -> Tensor:
        """(rows, centres) squared."""
        x = self.features
        return torch.addmm((x**2).sum(1, keepdim=True) + (centres**2).sum(1), x, centres.T, alpha=-2).clamp_(min=0)

    def room(self) -> Ints:
        """How many unlabelled rows fit into each cluster; negative where there are too many labelled ones."""
        assert self.size is not None
        return self.size - np.bincount(self.target[self.known], minlength=self.clusters)


@dataclass(frozen=True)
class Found:
    """The best iteration of a start."""

    labels: Ints
    inertia: float
    centres: Tensor


def balanced_kmeans(rows: Rows, generator: torch.Generator, restarts: int, iterations: int, clean: bool) -> Found:
    """The best of some starts."""
    found: Found | None = None
    for _ in range(restarts):
        draws = torch.rand(rows.clusters - rows.classes, generator=generator, dtype=torch.float64).tolist()
        one = from_starts(rows, starts(rows, draws, clean)[0], iterations, clean)
        # Starts that end in the same clusters differ by rounding alone; the first of them numbers the clusters.
        if found is None or one.inertia < found.inertia * (1 - SAME):
            found = one
    assert found is not None
    return found


def class_means(rows: Rows) -> Tensor:
    """(classes, dim) means of labelled rows."""
    known = torch.from_numpy(rows.known).to(rows.features.device)
    own = torch.from_numpy(rows.target[rows.known]).to(rows.features.device)
    return cluster_means(rows.features[known], own, rows.features.new_zeros((rows.classes, rows.features.shape[1])))


def starts(rows: Rows, draws: Sequence[float], clean: bool) -> tuple[Tensor, list[int]]:
    """Class means, then unlabelled rows by k-means++; and which of the unlabelled rows these are.

    With a size, rows near a chosen one shall not be drawn as well. As released the rows that are left out have the
    numbers (among those that are left) of the *centres* nearest to the chosen row.
    """
    own = rows.features[torch.from_numpy(~rows.known).to(rows.features.device)]
    centres = class_means(rows)
    left = np.arange(len(own))
    nearest = _squares(own, centres).amin(1).cpu().double().numpy() if len(centres) else np.ones(len(own))
    chosen: list[int] = []
    for draw in draws:
        if not len(left):  # nothing is left to draw from: everything may be drawn again
            left = np.setdiff1d(np.arange(len(own)), chosen)
        weight = nearest[left].cumsum()
        place = min(int(np.searchsorted(weight, draw * weight[-1])), len(left) - 1)
        row = int(left[place])
        chosen.append(row)
        to_centre = _squares(own, own[row : row + 1])[:, 0].cpu().double().numpy()
        if rows.size is None:
            gone: Ints = np.array([place])
        elif clean:
            gone = np.argsort(to_centre[left], kind="stable")[: rows.size]
        else:
            among = _squares(centres, own[row : row + 1])[:, 0].cpu().numpy()
            gone = np.argsort(among, kind="stable")[: rows.size]
            gone = gone[gone < len(left)]
        left = np.delete(left, gone)
        centres = torch.cat([centres, own[row : row + 1]])
        nearest = to_centre if len(centres) == 1 else np.minimum(nearest, to_centre)
    return centres, chosen


def _squares(rows: Tensor, centres: Tensor) -> Tensor:
    return ((rows[:, None] - centres[None]) ** 2).sum(2) if len(rows) * len(centres) < 4096 else _product(rows, centres)


def _product(rows: Tensor, centres: Tensor) -> Tensor:
    return (rows**2).sum(1, keepdim=True).add((centres**2).sum(1)).addmm(rows, centres.T, alpha=-2).clamp_(min=0)


def from_starts(rows: Rows, centres: Tensor, iterations: int, clean: bool, second_loop: bool = True) -> Found:
    """The iteration with the smallest inertia of both loops, with the centres that it moved to."""
    best: Found | None = None
    loops: list[tuple[bool, Callable[[int], int]]] = [(True, lambda t: t if rows.size is not None else 0)]
    if second_loop:
        loops.append((False, lambda t: 0))
    for first, rounds in loops:
        for t in range(iterations):
            distance = rows.distances(centres)
            labels, inertia = _assigned(rows, distance.cpu().double().numpy(), rounds(t), clean)
            moved = cluster_means(rows.features, torch.from_numpy(labels).to(rows.features.device), centres)
            if first:  # base centres stay
                moved = torch.cat([centres[: rows.classes], moved[rows.classes :]])
            shift = float((moved - centres).norm(dim=1).sum()) ** 2
            centres = moved
            if best is None or inertia < best.inertia:
                best = Found(labels, inertia, centres)
            if shift < STANDSTILL:
                break
    assert best is not None
    return best


def _assigned(rows: Rows, distance: Floats, rounds: int, clean: bool) -> tuple[Ints, float]:
    """Cluster of every row after some rounds of balancing, and the inertia, which does not see the balancing."""
    known = rows.known
    labels = rows.target.copy()
    own = distance[~known]
    free = own.argmin(1)
    inertia = float(own.min(1, initial=np.inf).sum() + distance[known, rows.target[known]].sum())
    for _ in range(rounds):
        balanced_round(free, own, rows.room(), clean)
    labels[~known] = free
    return labels, inertia


def balanced_round(labels: Ints, distance: Floats, room: Ints, clean: bool) -> None:
    """Set free the farthest rows of clusters that hold too many, and give them to those that have room."""
    clusters = len(room)
    counts = np.bincount(labels, minlength=clusters)
    is_open = counts < room if clean else (counts < room) | (counts == 1)
    if not is_open.any():
        return
    keep = np.maximum(room, 0) if clean else np.where(room >= 0, room, np.maximum(counts + room, 0))
    own = distance[np.arange(len(labels)), labels]
    order = np.lexsort((own, labels))
    first = np.zeros(clusters, dtype=np.int64)
    first[1:] = counts.cumsum()[:-1]
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - first[labels[order]]
    over = (counts > room) & ~is_open
    freed = over[labels] & (rank >= keep[labels])
    shut = np.where(is_open, distance[freed], np.inf)
    labels[freed] = shut.argmin(1)
