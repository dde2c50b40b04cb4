"""What a benchmark says: figures with a bar to reach, and claims of exactness that must hold."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A ratio and what it must reach."""

    name: str
    value: float
    bar: float
    at_least: bool = True
    """Whether more is better."""
    detail: str = ""

    @property
    def reached(self) -> bool:
        """Whether the bar is reached."""
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    @property
    def halfway(self) -> bool:
        """Whether at least half of the bar is reached: less is a fault and no noise."""
        return self.value >= self.bar / 2 if self.at_least else self.value <= self.bar * 2

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"kind": "figure", **asdict(self), "reached": self.reached}


@dataclass(frozen=True)
class Claim:
    """Something that must be exactly so."""

    name: str
    holds: bool
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"kind": "claim", **asdict(self)}


@dataclass(frozen=True)
class Growth:
    """Cost at growing sizes, relative to the first."""

    name: str
    sizes: tuple[int, ...]
    costs: tuple[float, ...]
    unit: str = "s"
    detail: str = ""

    @property
    def linear(self) -> bool:
        """Whether cost grows no faster than size, but for a quarter of noise."""
        first, last = self.sizes[0], self.sizes[-1]
        return self.costs[-1] <= 1.25 * self.costs[0] * last / first

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"kind": "growth", **asdict(self), "linear": self.linear}


def seconds(action: Callable[[], object]) -> float:
    """How long something takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def faster(
    slow: Callable[[], object], fast: Callable[[], object], rounds: int, times: float = 1.0
) -> tuple[float, str]:
    """How often ``fast`` fits into ``slow`` (counted ``times`` times): the median over alternating rounds."""
    pairs = [(times * seconds(slow), seconds(fast)) for _ in range(rounds)]
    one, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    return statistics.median(a / b for a, b in pairs), f"{one:.3g} s against {other:.3g} s"
