"""Statistics against scipy and against cases computed by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gcdbench.analysis.statistics import (
    PAIRED_T,
    SIGN_FLIP,
    WELCH,
    difference,
    holm,
    paired,
    sign_flip,
    unpaired,
    verdict,
)
from gcdbench.records.summary import mean_std, spoken

pytestmark = pytest.mark.usefixtures("few_digits")


def by_seed(values):
    return dict(enumerate(values))


def test_one_run_each():
    d = difference({0: 71.0}, {0: 68.5})
    assert (d.n, d.mean, d.low, d.high, d.p) == (1, 2.5, None, None, None)
    assert d.test == "no test: a single pair of runs"
    assert verdict(d.mean, d.p) == "cannot tell"


def test_two_runs_by_hand():
    """Gaps 1 and 3: mean 2, standard error 1, one degree of freedom, where t is Cauchy: p = 1 - 2 atan(2) / pi."""
    d = paired([1.0, 3.0])
    assert d.mean == 2.0
    assert d.p == pytest.approx(1 - 2 * math.atan(2.0) / math.pi)
    reach = math.tan(math.pi * 0.475)  # the 97.5 % quantile of the Cauchy distribution
    assert (d.low, d.high) == pytest.approx((2 - reach, 2 + reach))
    assert d.test == PAIRED_T
    assert verdict(d.mean, d.p) == "cannot tell"


def test_three_runs_by_hand():
    """Gaps 1, 2, 3: t = 2 sqrt(3); with two degrees of freedom p = 1 - t / sqrt(2 + t^2)."""
    d = paired([1.0, 2.0, 3.0])
    t = 2 * math.sqrt(3)
    assert d.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert d.test == PAIRED_T
    assert verdict(d.mean, d.p) == "cannot tell"


def test_three_runs_can_reach_the_level():
    d = paired([3.0, 3.2, 3.1])
    assert d.p < 0.05
    assert verdict(d.mean, d.p) == "better"
    assert verdict(-d.mean, d.p) == "worse"
    assert d.low > 0


@pytest.mark.parametrize("n", [2, 3, 5])
def test_paired_t_is_scipys(n):
    random = np.random.default_rng(n)
    one, other = random.normal(70, 2, n), random.normal(68, 2, n)
    d = difference(by_seed(one), by_seed(other))
    expected = stats.ttest_rel(one, other)
    assert d.test == PAIRED_T
    assert d.p == pytest.approx(expected.pvalue)
    assert (d.low, d.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))


@pytest.mark.parametrize("n", [6, 8, 10])
def test_sign_flip_is_scipys_permutation_test(n):
    gaps = np.random.default_rng(n).normal(1, 1, n)
    expected = stats.permutation_test(
        (gaps,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert paired(gaps.tolist()).test == SIGN_FLIP
    assert sign_flip(gaps.tolist()) == pytest.approx(expected.pvalue)


def test_the_test_can_reach_the_level_it_is_used_at():
    """Six pairs reach 2 / 64; with three comparisons 0.05 / 3 is out of reach, so the t-test is used instead."""
    gaps = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    assert paired(gaps).test == SIGN_FLIP
    assert paired(gaps).p == 2 / 64
    assert paired(gaps[:5]).test == PAIRED_T
    assert paired(gaps, 0.05 / 3).test == PAIRED_T
    assert difference(by_seed(gaps), by_seed([0.0] * 6), comparisons=3).test == PAIRED_T


def test_equal_differences_have_no_spread():
    d = paired([2.0, 2.0, 2.0])
    assert (d.p, d.low, d.high) == (None, None, None)
    assert "no spread" in d.test
    assert verdict(d.mean, d.p) == "cannot tell"
    # With six of them the signs alone are enough.
    assert paired([2.0] * 6).p == 2 / 64


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
def test_identical_runs_cannot_be_told_apart(n):
    values = by_seed([70.0 + i for i in range(n)])
    d = difference(values, values)
    assert d.mean == 0
    assert verdict(d.mean, d.p) == "cannot tell"
    assert "equal" in d.test


def test_many_pairs_are_sampled_and_repeatable():
    gaps = np.random.default_rng(0).normal(0.5, 1, 25).tolist()
    assert sign_flip(gaps) == sign_flip(gaps)
    assert sign_flip(gaps) == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue, abs=0.01)
    assert sign_flip([1.0 + i / 100 for i in range(25)]) > 0


def test_runs_without_common_seeds():
    one, other = {0: 70.0, 1: 72.0, 2: 71.5}, {5: 60.0, 6: 61.0}
    d = difference(one, other)
    expected = stats.ttest_ind(list(one.values()), list(other.values()), equal_var=False)
    assert d.test.startswith(WELCH)
    assert d.p == pytest.approx(expected.pvalue)
    assert (d.low, d.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert unpaired([1.0, 1.0], [2.0, 2.0]).p is None


def test_a_single_run_and_no_common_seed():
    d = difference({0: 70.0}, {1: 60.0, 2: 62.0})
    assert d.mean == 9.0
    assert d.p is None


def test_only_common_seeds_are_paired():
    d = difference({0: 70.0, 1: 72.0, 2: 90.0}, {0: 69.0, 1: 70.0, 7: 10.0})
    assert d.n == 2
    assert d.mean == 1.5


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.2, None, 0.01]) == [0.2, None, 0.02]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_properties(ps):
    """Never smaller than the plain p, never larger than Bonferroni, same order."""
    adjusted = holm(ps)
    for p, a in zip(ps, adjusted, strict=True):
        assert p <= a <= min(1.0, p * len(ps)) + 1e-12
    order = np.argsort(ps, kind="stable")
    assert all(adjusted[i] <= adjusted[j] + 1e-12 for i, j in itertools.pairwise(order))


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=9))
def test_turning_the_sides_turns_the_sign_and_nothing_else(gaps):
    one, other = paired(gaps), paired([-g for g in gaps])
    assert other.mean == pytest.approx(-one.mean)
    assert other.p == pytest.approx(one.p) if one.p is not None else other.p is None
    assert one.test == other.test


def test_mean_and_spread():
    assert mean_std([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    assert mean_std([5.0]) == (5.0, None)
    assert spoken([1.0, 3.0]) == "2.0 ± 1.4"
    assert spoken([5.0]) == "5.0"
    assert spoken([]) == "-"
