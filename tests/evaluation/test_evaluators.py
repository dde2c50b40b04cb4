from __future__ import annotations

import numpy as np
import pytest

from gcdbench.contracts import Prediction, Truth
from gcdbench.errors import UsageError
from gcdbench.evaluation import evaluators as e
from gcdbench.evaluation.selection import RULES, selection_rule
from gcdbench.prepare.run_context import load_evaluators

#                 base 0, base 1, novel 2, novel 3
TARGET = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3, 3])
# Clusters 2 and 3 swapped; one row of class 0 goes to class 2's cluster, one of class 3 to class 1's.
CLUSTER = np.array([0, 0, 3, 1, 1, 3, 3, 3, 2, 1])
TRUTH = Truth(TARGET, 2, 4)


def test_cluster_accuracy_in_percent():
    got = e.ClusterAccuracy()(TRUTH, Prediction(CLUSTER))
    assert got["all"] == pytest.approx(80)
    assert got["base"] == pytest.approx(80)
    assert got["novel"] == pytest.approx(80)
    assert {"v1_all", "v2b_novel"} <= set(got)


def test_oracle_base_counts_base_rows_only():
    main = np.array([0, 0, 1, 1, 1, 0, 0, 0, 0, 0])
    aux = np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 1])
    got = e.OracleBase()(TRUTH, Prediction(CLUSTER, base={"main": main, "aux": aux}))
    assert got == {"ob": 80.0, "pseudo_label_main": 80.0, "pseudo_label_aux": 100.0}
    assert e.OracleBase()(TRUTH, Prediction(CLUSTER)) == {}


def test_confusion_between_base_and_novel():
    got = e.BaseNovelConfusion()(TRUTH, Prediction(CLUSTER))
    assert got == {
        "base_to_base": 80.0,
        "base_to_novel": 20.0,
        "novel_to_base": 20.0,
        "novel_to_novel": 80.0,
    }


def test_class_distribution():
    got = e.ClassDistribution()(TRUTH, Prediction(CLUSTER))
    # predicted 2, 3, 4, 1 rows for true 3, 2, 3, 2
    assert got["cpd_rmse_base"] == pytest.approx(1)
    assert got["cpd_rmse_novel"] == pytest.approx(1)
    assert got["predicted_base_rows"] == 5
    assert got["true_base_rows"] == 5


def test_more_clusters_than_classes():
    many = Prediction(np.arange(10))
    for evaluator in (e.ClusterAccuracy(), e.BaseNovelConfusion(), e.ClassDistribution(), e.Information()):
        assert all(np.isfinite(v) for v in evaluator(TRUTH, many).values())


def test_confidence_needs_no_truth():
    blind = Truth(np.full(10, -1), 2, 4)
    got = e.Confidence()(blind, Prediction(CLUSTER, np.full(10, 0.5, dtype=np.float32)))
    assert got == {"clusters_used": 4.0, "predicted_base_share": 50.0, "confidence": 50.0}


def test_registered_evaluators_load_with_versions():
    loaded, broken = load_evaluators()
    assert not broken
    assert {x.name for x in loaded} >= {"cluster_accuracy", "oracle_base", "information", "confidence"}
    assert all(isinstance(x.version, int) for x in loaded)


def test_selection_rules():
    assert selection_rule("last").metric is None
    assert {name for name, rule in RULES.items() if rule.oracle} == {
        "best-base-test",
        "best-novel-test",
        "best-all-unlabelled",
    }
    with pytest.raises(UsageError, match="Did you mean 'last'"):
        selection_rule("lest")
