from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from gcdbench.evaluation.information import ari, nmi
from gcdbench.toolbox import cluster_accuracy as accuracy


@pytest.mark.parametrize("case", range(6))
@pytest.mark.parametrize("variant", ["v1", "v2", "v2b"])
def test_equals_the_published_metrics(case, variant, golden):
    data = np.load(golden / "cluster_accuracy.npz")
    y_true, y_pred = (data[f"{case}.{n}"].astype(np.int64) for n in ("y_true", "y_pred"))
    got = getattr(accuracy, variant)(y_true, y_pred, int(data[f"{case}.num_base"]))
    np.testing.assert_array_equal(got, data[f"{case}.{variant}"])


labels = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)


@given(labels, st.integers(0, 4))
def test_v2_is_the_best_renaming(pairs, num_base):
    y_true, y_pred = np.array(pairs).T
    best = max(np.mean([names[p] == t for t, p in pairs]) for names in itertools.permutations(range(4)))
    got = accuracy.v2(y_true, y_pred, num_base)
    assert got.all == pytest.approx(best)
    base = (y_true < num_base).mean()
    parts = [w * a for w, a in ((base, got.base), (1 - base, got.novel)) if w > 0]
    assert sum(parts) == pytest.approx(got.all)


@given(labels, st.integers(0, 4), st.permutations(range(6)))
def test_cluster_names_do_not_matter(pairs, num_base, names):
    y_true, y_pred = np.array(pairs).T
    renamed = np.array(names)[y_pred]
    for variant in (accuracy.v1, accuracy.v2):
        np.testing.assert_allclose(variant(y_true, y_pred, num_base).all, variant(y_true, renamed, num_base).all)


@given(labels, st.integers(1, 3))
def test_v1_is_never_below_v2(pairs, num_base):
    y_true, y_pred = np.array(pairs).T
    assert accuracy.v1(y_true, y_pred, num_base).all >= accuracy.v2(y_true, y_pred, num_base).all - 1e-12


@given(labels)
def test_information_equals_scikit_learn(pairs):
    y_true, y_pred = np.array(pairs).T
    assert nmi(y_true, y_pred) == pytest.approx(normalized_mutual_info_score(y_true, y_pred), abs=1e-9)
    assert ari(y_true, y_pred) == pytest.approx(adjusted_rand_score(y_true, y_pred), abs=1e-9)


def test_perfect_and_one_sided():
    y = np.array([0, 1, 2, 3])
    assert accuracy.v2(y, (y + 1) % 4, 2) == (1, 1, 1)
    only_base = accuracy.v2(y, y, 4)
    assert only_base.base == 1
    assert np.isnan(only_base.novel)
    assert accuracy.v1(y, y, 4).all == 1


def test_large_problem_is_quick():
    random = np.random.default_rng(0)
    y_true, y_pred = random.integers(0, 1000, (2, 100_000))
    started = time.perf_counter()
    accuracy.v2(y_true, y_pred, 500)
    assert time.perf_counter() - started < 10  # about 0.1 s; the bound only catches a loop over rows
