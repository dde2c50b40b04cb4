"""Is a difference between two methods real? Tests that can reach the level at the number of runs there are.

Runs of two methods with the same seed saw the same split, batches and views, so they are compared pair by pair.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEVEL = 0.05
"""Probability of a wrong "better" or "worse" among the comparisons of one column, if there is no difference."""
CONFIDENCE = 0.95
FEWEST = 3
"""Pairs of runs below which nothing is said: a spread cannot be estimated from one or two."""
EXACT_UP_TO = 16
"""Sign flips of this many pairs are enumerated; beyond it they are sampled, always the same ones."""
SAMPLED = 100_000

TOO_FEW = "too few pairs"
SIGN_FLIP = "exact sign-flip test"
SAMPLED_FLIP = "sampled sign-flip test"
PAIRED_T = "paired t-test"
WELCH = "Welch's t-test"


@dataclass(frozen=True)
class Difference:
    """One method minus another in one metric."""

    n: int
    """Pairs of runs, or the runs of the smaller side where nothing can be paired."""
    mean: float
    low: float | None
    """95 % t-interval; None where there is no spread to estimate it from."""
    high: float | None
    p: float | None
    """Two-sided, not corrected for other comparisons; None where no test can reach the level."""
    test: str
    """Which test, or why there is none."""


@dataclass(frozen=True)
class Pairwise:
    """All pairs of some methods in one metric."""

    differences: Mapping[tuple[int, int], Difference]
    """First minus second, first < second, where both have values."""
    adjusted: Mapping[tuple[int, int], float | None]
    """p after Holm's correction over the pairs."""

    def verdict(self, one: int, other: int) -> str:
        """What can be said of ``one`` against ``other``."""
        pair = (min(one, other), max(one, other))
        found = self.differences[pair]
        if found.n < FEWEST:
            return TOO_FEW
        return verdict(found.mean if one < other else -found.mean, self.adjusted[pair])

    def best(self) -> int | None:
        """The one that is better than every other one, if there is one."""
        present = sorted({i for pair in self.differences for i in pair})
        return next((i for i in present if all(self.verdict(i, j) == "better" for j in present if j != i)), None)


def pairwise(values: Sequence[Mapping[int, float]]) -> Pairwise:
    """Compare everybody with everybody; each entry maps seeds to values."""
    pairs = [(i, j) for i in range(len(values)) for j in range(i + 1, len(values)) if values[i] and values[j]]
    found = {(i, j): difference(values[i], values[j], len(pairs)) for i, j in pairs}
    return Pairwise(found, dict(zip(pairs, holm([d.p for d in found.values()]), strict=True)))


def difference(one: Mapping[int, float], other: Mapping[int, float], comparisons: int = 1) -> Difference:
    """``one`` minus ``other``, both by seed; ``comparisons`` is the size of the family the test is part of."""
    shared = sorted(one.keys() & other.keys())
    if len(shared) >= 2 or (shared and min(len(one), len(other)) < 2):
        return paired([one[seed] - other[seed] for seed in shared], LEVEL / comparisons)
    if min(len(one), len(other)) >= 2:
        return unpaired(list(one.values()), list(other.values()))
    gap = statistics.fmean(one.values()) - statistics.fmean(other.values())
    return Difference(min(len(one), len(other)), gap, None, None, None, "no test: a single run and no common seed")


def paired(gaps: Sequence[float], level: float = LEVEL) -> Difference:
    """From the differences of pairs of runs.

    The sign-flip test assumes nothing about the shape of the differences, but cannot give less than 2 / 2^n: it is
    used where that is enough for ``level``. Below that the t-test can, if the differences vary at all.
    """
    from scipy import stats

    n, mean = len(gaps), statistics.fmean(gaps)
    spread = statistics.stdev(gaps) if n > 1 else 0.0
    varies = spread > 1e-9 * max(1.0, abs(mean))
    found = stats.ttest_1samp(gaps, 0.0) if varies else None
    low, high = _interval(found)
    if all(abs(gap) < 1e-9 for gap in gaps):
        return Difference(n, 0.0, None, None, None if n < 2 else 1.0, "no test: the runs are equal")
    if 2 / 2**n <= level:
        return Difference(n, mean, low, high, sign_flip(gaps), SIGN_FLIP if n <= EXACT_UP_TO else SAMPLED_FLIP)
    if found is not None:
        return Difference(n, mean, low, high, float(found.pvalue), PAIRED_T)
    reason = "no test: a single pair of runs" if n == 1 else f"no test: {n} equal differences have no spread"
    return Difference(n, mean, low, high, None, reason)


def unpaired(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Welch's test, for runs without common seeds."""
    from scipy import stats

    mean = statistics.fmean(one) - statistics.fmean(other)
    parts = [statistics.variance(values) / len(values) for values in (one, other)]
    error = math.sqrt(sum(parts))
    n = min(len(one), len(other))
    if error <= 1e-9 * max(1.0, abs(mean)):
        return Difference(n, mean, None, None, None, "no test: the runs have no spread")
    found = stats.ttest_ind(one, other, equal_var=False)
    low, high = _interval(found)
    return Difference(n, mean, low, high, float(found.pvalue), f"{WELCH}, not paired: no common seeds")


def _interval(found: Any) -> tuple[float, float] | tuple[None, None]:
    """The interval of a t-test, if there was one."""
    if found is None:
        return None, None
    low, high = found.confidence_interval(CONFIDENCE)
    return float(low), float(high)


def sign_flip(gaps: Sequence[float]) -> float:
    """Share of all sign patterns whose mean is at least as far from zero as the one seen."""
    import numpy as np
    from scipy.stats import permutation_test

    patterns = np.inf if len(gaps) <= EXACT_UP_TO else SAMPLED
    found = permutation_test(
        (np.asarray(gaps, dtype=np.float64),),
        lambda values, axis: values.sum(axis=axis),
        permutation_type="samples",
        n_resamples=patterns,
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's correction over the tests that were made; None stays None."""
    made = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    highest = 0.0
    for rank, (p, i) in enumerate(made):
        highest = max(highest, min(1.0, p * (len(made) - rank)))
        adjusted[i] = highest
    return adjusted


def verdict(mean: float, adjusted: float | None) -> str:
    """`better`, `worse` or `cannot tell`, for a metric of which more is better."""
    if adjusted is None or adjusted >= LEVEL or mean == 0:
        return "cannot tell"
    return "better" if mean > 0 else "worse"
