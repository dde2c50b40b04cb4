"""Means and spreads over seeds. No torch here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gcdbench.records.record import Record

HEADLINE = {"all": "All", "base": "Base", "novel": "Novel", "ob": "OB"}
"""The metrics every table shows and their titles; more is better for all of them."""


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


def spoken_flops(record: Record) -> str:
    """Operations of one training step, in words."""
    found = record.flops_per_step
    if found is None:
        return "operations not counted"
    return f"trunk {found['trunk'] / 1e9:.2f}, method {found['method'] / 1e9:.2f} GFLOP"


def spoken_times(record: Record) -> str:
    """Seconds of every phase; training that lanes shared is said to be shared."""
    shared = {"train": f" (shared by {record.lanes} lanes)"} if record.lanes > 1 else {}
    return ", ".join(f"{name} {seconds:.1f} s{shared.get(name, '')}" for name, seconds in record.timings.items())


def spoken_k(protocol: Mapping[str, Any]) -> str:
    """`K = 10 (true)`, or that the method found it."""
    if protocol["k"] is None:
        return "K found by the method"
    return f"K = {protocol['k']} ({protocol['k_source']})"


def spoken_time(seconds: float) -> str:
    """`45 s`, `12 min`, `3.4 h`, `2.1 days`."""
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            value = seconds / unit
            return f"{value:.0f} {name}" if unit < 3600 else f"{value:.1f} {name}"
    return f"{seconds / 86_400:.1f} days"
