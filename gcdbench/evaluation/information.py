"""Normalised mutual information and adjusted Rand index, from one contingency table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcdbench.contracts import IntArray


def contingency(y_true: IntArray, y_pred: IntArray) -> NDArray[np.float64]:
    """Rows per (class, cluster) pair, only for classes and clusters that occur."""
    _, classes = np.unique(y_true, return_inverse=True)
    _, clusters = np.unique(y_pred, return_inverse=True)
    shape = (int(classes.max()) + 1, int(clusters.max()) + 1)
    flat = np.bincount(classes * shape[1] + clusters, minlength=shape[0] * shape[1])
    return flat.reshape(shape).astype(np.float64)


def nmi(y_true: IntArray, y_pred: IntArray) -> float:
    """Mutual information over the mean of both entropies; 1 when both partitions are trivial."""
    table = contingency(y_true, y_pred)
    total = table.sum()
    rows, columns = table.sum(1), table.sum(0)
    filled = table > 0
    expected = np.outer(rows, columns)[filled]
    mutual = float((table[filled] / total * np.log(table[filled] * total / expected)).sum())
    mean = (_entropy(rows / total) + _entropy(columns / total)) / 2
    return 1.0 if mean == 0 else max(0.0, min(1.0, mutual / mean))


def ari(y_true: IntArray, y_pred: IntArray) -> float:
    """Rand index adjusted for chance."""
    table = contingency(y_true, y_pred)
    together = _pairs(table).sum()
    same_class, same_cluster = _pairs(table.sum(1)).sum(), _pairs(table.sum(0)).sum()
    all_pairs = float(_pairs(table.sum()))
    if all_pairs == 0:
        return 1.0
    chance = same_class * same_cluster / all_pairs
    best = (same_class + same_cluster) / 2
    return 1.0 if best == chance else float((together - chance) / (best - chance))


def _entropy(p: NDArray[np.float64]) -> float:
    return float(-(p * np.log(p)).sum())


def _pairs(n: NDArray[np.float64]) -> NDArray[np.float64]:
    return n * (n - 1) / 2
