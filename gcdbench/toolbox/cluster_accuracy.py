"""Cluster accuracy in the three published variants.

v2 (the usual one): one optimal assignment of clusters to classes over all rows; Base and Novel are the hits among
rows of those classes. v1: separate assignments for base and novel rows. v2b: v2's assignment, classes averaged.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from gcdbench.contracts import IntArray


class Accuracy(NamedTuple):
    """Fractions of rows (or, for v2b, means over classes); NaN where there is nothing to count."""

    all: float
    base: float
    novel: float


def counts(y_pred: IntArray, y_true: IntArray) -> IntArray:
    """(D, D) how often cluster i holds class j, D large enough for both."""
    size = int(max(y_pred.max(), y_true.max())) + 1
    return np.bincount(y_pred * size + y_true, minlength=size * size).reshape(size, size)


def assign(table: IntArray) -> IntArray:
    """For each cluster the class it stands for, chosen once so that the most rows agree."""
    clusters, classes = linear_sum_assignment(table, maximize=True)
    result = np.empty(len(table), dtype=np.int64)
    result[clusters] = classes
    return result


def v2(y_true: IntArray, y_pred: IntArray, num_base: int) -> Accuracy:
    """One global assignment; shares of rows."""
    hits, sizes = _hits(y_true, y_pred)
    return Accuracy(
        _ratio(hits.sum(), sizes.sum()),
        _ratio(hits[:num_base].sum(), sizes[:num_base].sum()),
        _ratio(hits[num_base:].sum(), sizes[num_base:].sum()),
    )


def v2b(y_true: IntArray, y_pred: IntArray, num_base: int) -> Accuracy:
    """One global assignment; every class that occurs counts equally."""
    hits, sizes = _hits(y_true, y_pred)
    present = sizes > 0
    per_class = hits[present] / sizes[present]
    is_base = np.flatnonzero(present) < num_base
    return Accuracy(_mean(per_class), _mean(per_class[is_base]), _mean(per_class[~is_base]))


def v1(y_true: IntArray, y_pred: IntArray, num_base: int) -> Accuracy:
    """Separate assignments for base and for novel rows; All is their mean weighted by rows."""
    is_base = y_true < num_base
    base, novel = (_single(y_true[m], y_pred[m]) for m in (is_base, ~is_base))
    share = float(is_base.mean())
    total = sum(w * a for w, a in ((share, base), (1 - share, novel)) if w > 0)
    return Accuracy(float(total), base, novel)


def _hits(y_true: IntArray, y_pred: IntArray) -> tuple[IntArray, IntArray]:
    """Per class: rows in the cluster assigned to it, and rows in all."""
    table = counts(y_pred, y_true)
    mapping = assign(table)
    hits = np.zeros(len(table), dtype=np.int64)
    hits[mapping] = table[np.arange(len(table)), mapping]
    return hits, table.sum(0)


def _single(y_true: IntArray, y_pred: IntArray) -> float:
    if not len(y_true):
        return float("nan")
    hits, sizes = _hits(y_true, y_pred)
    return _ratio(hits.sum(), sizes.sum())


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else float("nan")


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
