"""Agglomerative clustering with Ward's criterion in memory linear in the rows, and cuts of its tree.

The nearest-neighbour chain needs no table of distances: each step compares one cluster's mean with all others, so that
50,000 rows of 768 numbers take 300 MB (twice that for a moment) instead of the 10 GB of a condensed distance matrix.
Merges and heights are those of the usual algorithm, up to the order of equal ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcdbench.contracts import IntArray
from gcdbench.errors import UsageError

Watch = Callable[[int, int], None]
"""Told the number of merges done and to do."""
TELL = 1000
"""Merges between two words to the watcher."""


@dataclass(frozen=True)
class Dendrogram:
    """The tree of merges. Row r is node r; the merge in line i makes node rows + i."""

    merges: IntArray
    """(rows - 1, 2) nodes that were joined, in the order of their heights."""
    heights: NDArray[np.float64]
    """(rows - 1,) square root of twice what each merge adds to the sum of squared distances, as scipy has it."""

    @property
    def rows(self) -> int:
        """Number of rows that were clustered."""
        return len(self.merges) + 1

    @cached_property
    def _leaves(self) -> tuple[IntArray, IntArray, IntArray]:
        """Rows in an order in which every node is an interval, and where each node's begins and ends."""
        rows, nodes = self.rows, 2 * self.rows - 1
        size = np.ones(nodes, dtype=np.int64)
        for number, (a, b) in enumerate(self.merges, rows):
            size[number] = size[a] + size[b]
        start = np.zeros(nodes, dtype=np.int64)
        for number in range(nodes - 1, rows - 1, -1):
            a, b = self.merges[number - rows]
            start[a], start[b] = start[number], start[number] + size[a]
        order = np.empty(rows, dtype=np.int64)
        order[start[:rows]] = np.arange(rows)
        return order, start, start + size

    def nodes(self, clusters: int) -> list[int]:
        """The nodes that are the clusters of a cut into this many."""
        if not 1 <= clusters <= self.rows:
            raise UsageError(f"A tree of {self.rows} rows cannot be cut into {clusters} clusters.")
        first = self.rows + len(self.merges) - (clusters - 1)  # nodes from here on are cut
        parts = {2 * self.rows - 2}
        for number in range(2 * self.rows - 2, first - 1, -1):
            parts.remove(number)
            parts.update(map(int, self.merges[number - self.rows]))
        return sorted(parts)

    def cut(self, clusters: int) -> IntArray:
        """(rows,) the cluster of each row, numbered by their first rows."""
        order, start, end = self._leaves
        labels = np.empty(self.rows, dtype=np.int64)
        for number, node in enumerate(self.nodes(clusters)):
            labels[order[start[node] : end[node]]] = number
        _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[inverse]

    def counts(self, target: IntArray, classes: int) -> Callable[[list[int]], IntArray]:
        """A function from nodes to (nodes, classes) numbers of their labelled rows; ``target`` is -1 elsewhere."""
        order, start, end = self._leaves
        known = target[order]
        before = np.zeros((self.rows + 1, classes), dtype=np.int32)
        before[1:][np.flatnonzero(known >= 0), known[known >= 0]] = 1
        np.cumsum(before, axis=0, out=before)
        return lambda nodes: before[end[nodes]] - before[start[nodes]]


@torch.no_grad()
def ward(features: Tensor, watch: Watch | None = None) -> Dendrogram:
    """The tree of all merges of the rows, on the features' device."""
    if features.ndim != 2 or not len(features):
        raise UsageError(f"Ward's clustering takes rows of features, not a tensor of shape {tuple(features.shape)}.")
    places = _Places(features.detach())
    rows = len(features)
    merged: list[tuple[float, int, int]] = []
    chain: list[int] = []
    lengths: list[float] = []  # distance of each member of the chain from the one before it
    while len(merged) < rows - 1:
        if not chain:
            chain, lengths = [places.any()], [float("inf")]
        near, length = places.nearest(chain[-1])
        # Lengths fall strictly along the chain; only by rounding can one that is in it seem nearer from this side.
        if length < lengths[-1] and near not in chain:
            chain.append(near)
            lengths.append(length)
            continue
        one, other = chain.pop(), chain.pop()
        length = lengths[-1]
        del lengths[-2:]
        merged.append((length, *places.merge(one, other)))
        chain = places.compacted(chain)
        if watch is not None and len(merged) % TELL == 0:
            watch(len(merged), rows - 1)
    return _ordered(merged, rows)


class _Places:
    """Clusters by place: mean, size and first row. A merged cluster takes the place of one of its parts; the other
    place is left out, and removed when half of the places are."""

    def __init__(self, features: Tensor) -> None:
        # Squared distances come from products, so that one pass over the means is enough; in double precision (where
        # the device has it) they are exact enough for rows that nearly coincide.
        exact = torch.float32 if features.device.type == "mps" else torch.float64
        self.means = features.to(exact)
        self.means = self.means - self.means.mean(0)
        self.squares = (self.means**2).sum(1)
        if not self.squares.isfinite().all():
            raise UsageError("Ward's clustering was given features that are not finite, or far too large.")
        self.sizes = torch.ones(len(features), dtype=exact, device=features.device)
        self.gone = torch.zeros(len(features), dtype=torch.bool, device=features.device)
        self.alive = np.ones(len(features), dtype=bool)
        self.row = np.arange(len(features))

    def any(self) -> int:
        """The first cluster there is."""
        return int(np.argmax(self.alive))

    def nearest(self, here: int) -> tuple[int, float]:
        """The cluster that is joined to this one at the least cost, and twice that cost; one copy to the host."""
        squares = torch.addmv(self.squares + self.squares[here], self.means, self.means[here], alpha=-2).clamp_(min=0)
        gaps = squares.mul_(2 * self.sizes[here]).div_(self.sizes[here] / self.sizes + 1)
        gaps.masked_fill_(self.gone, torch.inf)
        gaps[here] = torch.inf
        place = gaps.argmin()
        at, length = torch.stack([place.to(gaps.dtype), gaps[place]]).tolist()
        return int(at), length

    def merge(self, one: int, other: int) -> tuple[int, int]:
        """Join two clusters; a row of each, the first one standing for the result."""
        keep, gone = min(one, other), max(one, other)
        rows = int(self.row[keep]), int(self.row[gone])
        total = self.sizes[keep] + self.sizes[gone]
        self.means[keep] += (self.means[gone] - self.means[keep]) * (self.sizes[gone] / total)
        self.squares[keep] = (self.means[keep] ** 2).sum()
        self.sizes[keep] = total
        self.gone[gone] = True
        self.alive[gone] = False
        return rows

    def compacted(self, chain: list[int]) -> list[int]:
        """Remove places that are left out, if they are half of all; the chain with the new numbers of its places."""
        if 2 * self.alive.sum() > len(self.alive):
            return chain
        kept = np.flatnonzero(self.alive)
        number = np.cumsum(self.alive) - 1
        where = torch.from_numpy(kept).to(self.means.device)
        self.means, self.squares, self.sizes = self.means[where], self.squares[where], self.sizes[where]
        self.gone, self.alive, self.row = self.gone[where], self.alive[kept], self.row[kept]
        return [int(number[place]) for place in chain]


def _ordered(merged: list[tuple[float, int, int]], rows: int) -> Dendrogram:
    """Merges by height, with the numbers of the nodes they join."""
    merged.sort(key=lambda m: m[0])  # stable: among equals a part comes before what it is part of
    node = np.arange(rows)
    merges = np.empty((rows - 1, 2), dtype=np.int64)
    root = list(range(rows))

    def find(place: int) -> int:
        while root[place] != place:
            root[place] = root[root[place]]
            place = root[place]
        return place

    for line, (_, a, b) in enumerate(merged):
        one, two = find(a), find(b)
        merges[line] = sorted((node[one], node[two]))
        root[max(one, two)] = min(one, two)
        node[min(one, two)] = rows + line
    return Dendrogram(merges, np.sqrt(np.array([m[0] for m in merged], dtype=np.float64)))
