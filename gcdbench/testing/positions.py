"""Answers that look at nothing but where rows stand. Files are often sorted by class: such an answer must be worth no
more than chance, whatever the dataset."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gcdbench.contracts import IntArray, Pool
from gcdbench.toolbox.cluster_accuracy import v2

DRAWS = 100
"""Random answers that chance is judged by."""
SPREADS = 5.0
"""Standard deviations above the mean of random answers that are still chance."""


def by_number(pool: Pool, classes: int) -> IntArray:
    """As if rows were numbered class by class."""
    return pool.queries.index * classes // (int(pool.queries.index.max()) + 1)


def by_order(pool: Pool, classes: int) -> IntArray:
    """As if queries came class by class."""
    return np.arange(len(pool.queries)) * classes // len(pool.queries)


def by_neighbour(pool: Pool, classes: int) -> IntArray:
    """The class of the labelled row with the nearest number, or a new one where none is near."""
    known, target = pool.index[pool.labelled], pool.target[pool.labelled]
    order = np.argsort(known)
    known, target = known[order], target[order]
    asked = pool.queries.index
    after = np.clip(np.searchsorted(known, asked), 1, len(known) - 1)
    nearer = np.where(asked - known[after - 1] < known[after] - asked, after - 1, after)
    gap = np.abs(asked - known[nearer])
    near = gap <= len(pool) / (2 * classes)
    return np.where(near, target[nearer], asked * classes // (len(pool) + 1))


def by_embedding(pool: Pool, classes: int) -> IntArray:
    """As if images were shown class by class."""
    seen = 0

    def embed(tokens: Tensor) -> Tensor:
        nonlocal seen
        seen += len(tokens)
        return torch.arange(seen - len(tokens), seen)

    return (pool.queries.features(embed) * classes // len(pool.queries)).numpy()


CHEATS: dict[str, Callable[[Pool, int], IntArray]] = {
    "their numbers": by_number,
    "their order": by_order,
    "the numbers of labelled rows": by_neighbour,
}
"""By what they look at."""


def chance(truth: IntArray, answer: IntArray, num_base: int) -> float:
    """The highest accuracy that an answer with these clusters has by chance."""
    random = np.random.default_rng(0)
    lucky = [v2(truth, random.permutation(answer), num_base).all for _ in range(DRAWS)]
    return float(np.mean(lucky) + SPREADS * np.std(lucky))
