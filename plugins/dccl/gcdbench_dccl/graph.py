"""The graph of similar rows: links to the nearest others, weighted by similarity and by what labels say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gcdbench.toolbox.kmeans import BLOCK_BYTES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Graph:
    """Directed, weighted links between rows."""

    rows: int
    source: Ints
    target: Ints
    weight: Floats


@torch.no_grad()
def nearest_rows(features: Tensor, count: int) -> tuple[Ints, Floats]:
    """(rows, count) each row itself and the rows most similar to it, by cosine, and 1 - cosine; some rows at a time."""
    x = F.normalize(features.float(), dim=1)
    count = min(count, len(x))
    size = max(1, BLOCK_BYTES // (4 * len(x)))
    number, distance = [], []
    for start in range(0, len(x), size):
        similar = x[start : start + size] @ x.T
        here = torch.arange(len(similar), device=x.device)
        own = similar[here, here + start].clone()
        similar[here, here + start] = torch.inf  # the row itself is the first, whatever rounding says
        found = similar.topk(count, dim=1)
        values = found.values.clone()
        values[:, 0] = own
        number.append(found.indices)
        distance.append(1 - values)
    return torch.cat(number).cpu().numpy(), torch.cat(distance).cpu().double().numpy()


def links(neighbour: Ints, distance: Floats, target: Ints, smallest_similarity: float, label_rule: str) -> Graph:
    """Links to the listed rows that are similar enough. A link that labels vouch for weighs as much as one to the
    nearest other row."""
    rows, count = neighbour.shape
    source = np.repeat(np.arange(rows), count)
    to, away = neighbour.ravel(), distance.ravel()
    near = (to != source) & (away <= 1 - smallest_similarity)
    weight = 1 - away
    nearest = distance[:, 1] if count > 1 else np.zeros(rows)
    vouched = _vouched(source, to, np.tile(np.arange(count), rows), target, label_rule)
    weight = np.where(vouched, 1 - np.maximum(nearest[source], 0), weight)
    return Graph(rows, source[near], to[near], weight[near])


def _vouched(source: Ints, to: Ints, rank: Ints, target: Ints, rule: str) -> NDArray[np.bool_]:
    if rule == "none":
        return np.zeros(len(source), dtype=bool)
    # As released a row is compared with the row whose *number* is the rank; their rows begin with the labelled ones.
    known_first = np.argsort(target < 0, kind="stable")
    other = to if rule == "pairs" else known_first[np.minimum(rank, len(target) - 1)]
    return np.asarray((target[source] >= 0) & (target[source] == target[other]))
