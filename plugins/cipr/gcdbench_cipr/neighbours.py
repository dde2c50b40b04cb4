"""Selective neighbours: one for each row, the nearest other one or, for labelled rows, the next of a chain.

Labelled rows of a class form chains, and the last row of a chain is its own neighbour. Since every row has exactly one
neighbour, no group of linked rows ever holds two classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from gcdbench import IntArray

BLOCK_BYTES = 64 << 20
"""Largest table of similarities that is in memory at a time."""


@torch.no_grad()
def nearest_other(rows: Tensor) -> IntArray:
    """The most similar other row of each, by cosine; of a single row, itself."""
    if len(rows) < 2:
        return np.zeros(len(rows), dtype=np.int64)
    unit = F.normalize(rows, dim=1)
    size = max(1, BLOCK_BYTES // (unit.element_size() * len(unit)))
    found = []
    for first in range(0, len(unit), size):
        part = unit[first : first + size]
        similar = part @ unit.T
        here = torch.arange(len(part), device=unit.device)
        similar[here, here + first] = -torch.inf
        found.append(similar.argmax(1))
    return torch.cat(found).cpu().numpy()


def chained(nearest: IntArray, rows: Tensor, target: IntArray) -> IntArray:
    """The same with the rows of each class in chains of the square root of their number.

    A chain goes through its rows, taken in their order, from each to the nearest that it has not been at.
    """
    neighbour = nearest.copy()
    unit = F.normalize(rows, dim=1).cpu()
    for cls in np.unique(target[target >= 0]):
        own = np.flatnonzero(target == cls)
        size = math.ceil(math.sqrt(len(own)))
        for first in range(0, len(own), size):
            group = own[first : first + size]
            order = _chain(unit[torch.from_numpy(group)])
            neighbour[group[order]] = group[[*order[1:], order[-1]]]
    return neighbour


def _chain(unit: Tensor) -> list[int]:
    similar = (unit @ unit.T).numpy()
    order = [0]
    similar[:, 0] = -np.inf
    while len(order) < len(similar):
        order.append(int(similar[order[-1]].argmax()))
        similar[:, order[-1]] = -np.inf
    return order


@dataclass(frozen=True)
class Links:
    """Pairs of rows of which one is the other's neighbour, or that have the same one."""

    first: IntArray
    second: IntArray
    """Larger than ``first``."""
    weight: NDArray[np.float64]
    """2 where both or a chain's end are involved, else 1."""
    distance: NDArray[np.float64]
    """One minus the cosine."""

    @staticmethod
    def of(neighbour: IntArray, rows: Tensor) -> Links:
        """All of them."""
        count = len(neighbour)
        here = np.arange(count)
        places = (np.concatenate([here, here]), np.concatenate([here, neighbour]))
        to = coo_array((np.ones(2 * count), places), shape=(count, count)).tocsr()
        shared = (to @ to.T).tocoo()
        above = shared.coords[0] < shared.coords[1]
        first, second = (np.asarray(part[above], dtype=np.int64) for part in shared.coords)
        return Links(first, second, shared.data[above], _distances(rows, first, second))

    def at_most(self, limit: float) -> Links:
        """Those whose distance times weight is not above a limit."""
        keep = self.distance * self.weight <= limit
        return Links(self.first[keep], self.second[keep], self.weight[keep], self.distance[keep])

    @property
    def longest(self) -> float:
        """The largest distance times weight."""
        return float((self.distance * self.weight).max(initial=0.0))

    def groups(self, count: int) -> IntArray:
        """The group of linked rows of each row, numbered by their first row."""
        graph = coo_array((np.ones(len(self.first)), (self.first, self.second)), shape=(count, count))
        return in_order(connected_components(graph, directed=False)[1])


def _distances(rows: Tensor, first: IntArray, second: IntArray) -> NDArray[np.float64]:
    """One minus the cosine of pairs of rows, some at a time."""
    unit = F.normalize(rows.double(), dim=1)
    size = max(1, BLOCK_BYTES // (8 * unit.shape[1]))
    parts = []
    for start in range(0, len(first), size):
        pair = (torch.from_numpy(side[start : start + size]).to(unit.device) for side in (first, second))
        one, two = (unit[side] for side in pair)
        parts.append(1 - (one * two).sum(1))
    return torch.cat(parts).cpu().numpy() if parts else np.zeros(0)


def in_order(labels: IntArray) -> IntArray:
    """The same groups, numbered by their first row."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]
