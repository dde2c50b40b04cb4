"""Schedules of single numbers over epochs."""

from __future__ import annotations


def warm_down(start: float, end: float, epochs: int, epoch: int) -> float:
    """``epochs`` equally spaced values from ``start`` to ``end`` (both included), then ``end``."""
    if epochs <= 1 or epoch >= epochs:
        return end
    return start + (end - start) * epoch / (epochs - 1)
