"""Means and spreads over seeds. No torch here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (ddof 1); None for a single value."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return statistics.fmean(values), spread


def spoken(values: Sequence[float], digits: int = 1) -> str:
    """`93.1 ± 0.4`, `93.1`, or `-` for nothing."""
    known = [v for v in values if not math.isnan(v)]
    if not known:
        return "-"
    mean, spread = mean_std(known)
    text = f"{mean:.{digits}f}"
    return text if spread is None else f"{text} ± {spread:.{digits}f}"
