"""The evaluators that come with gcdbench. Shares are in percent, counts as they are."""

from __future__ import annotations

import numpy as np

from gcdbench.contracts import Evaluator, IntArray, Prediction, Truth
from gcdbench.evaluation.information import ari, nmi
from gcdbench.toolbox import cluster_accuracy as accuracy


def mapped(truth: Truth, prediction: Prediction) -> IntArray:
    """Each row's class after the one global assignment of clusters to classes."""
    return accuracy.assign(accuracy.counts(prediction.cluster, truth.target))[prediction.cluster]


class ClusterAccuracy(Evaluator):
    """All / Base / Novel: v2 under the plain names, v1 and v2b beside it."""

    name = "cluster_accuracy"
    version = 1
    headline = True

    def __call__(self, truth: Truth, prediction: Prediction) -> dict[str, float]:
        """Cluster accuracy of all, base and novel rows."""
        found = {
            "": accuracy.v2(truth.target, prediction.cluster, truth.num_base),
            "v1_": accuracy.v1(truth.target, prediction.cluster, truth.num_base),
            "v2b_": accuracy.v2b(truth.target, prediction.cluster, truth.num_base),
        }
        return {
            f"{prefix}{side}": 100 * value
            for prefix, triple in found.items()
            for side, value in triple._asdict().items()
        }


class OracleBase(Evaluator):
    """Base discrimination: accuracy on base rows when only base classes may be chosen, per branch.

    `ob` is the main branch; `pseudo_label_<branch>` is the same quantity for each branch, also known as base-class
    pseudo-label accuracy.
    """

    name = "oracle_base"
    version = 1
    headline = True

    def __call__(self, truth: Truth, prediction: Prediction) -> dict[str, float]:
        """Oracle base accuracy of every branch the method reports."""
        rows = truth.target < truth.num_base
        if not rows.any():
            return {}
        result = {
            f"pseudo_label_{branch}": 100 * float((best[rows] == truth.target[rows]).mean())
            for branch, best in prediction.base.items()
        }
        if "pseudo_label_main" in result:
            result["ob"] = result["pseudo_label_main"]
        return result


class BaseNovelConfusion(Evaluator):
    """Where base and novel rows end up after the assignment, in percent of the true side."""

    name = "confusion"
    version = 1

    def __call__(self, truth: Truth, prediction: Prediction) -> dict[str, float]:
        """The 2 x 2 confusion of base and novel."""
        to_base = mapped(truth, prediction) < truth.num_base
        is_base = truth.target < truth.num_base
        result: dict[str, float] = {}
        for side, rows in (("base", is_base), ("novel", ~is_base)):
            if rows.any():
                share = 100 * float(to_base[rows].mean())
                result[f"{side}_to_base"] = share
                result[f"{side}_to_novel"] = 100 - share
        return result


class ClassDistribution(Evaluator):
    """How far the number of rows predicted for each class is from the true number (RMSE, in rows)."""

    name = "class_distribution"
    version = 1

    def __call__(self, truth: Truth, prediction: Prediction) -> dict[str, float]:
        """Root mean squared error over base and over novel classes, and the rows predicted base."""
        found = mapped(truth, prediction)
        size = max(truth.num_classes, int(found.max()) + 1)
        predicted = np.bincount(found, minlength=size)
        actual = np.bincount(truth.target, minlength=size)
        gap = (predicted - actual).astype(np.float64)
        sides = {"base": gap[: truth.num_base], "novel": gap[truth.num_base : truth.num_classes]}
        result = {f"cpd_rmse_{k}": float(np.sqrt((v**2).mean())) for k, v in sides.items() if len(v)}
        result["predicted_base_rows"] = float(predicted[: truth.num_base].sum())
        result["true_base_rows"] = float(actual[: truth.num_base].sum())
        return result


class Information(Evaluator):
    """Agreement of the two partitions, whatever the clusters are called."""

    name = "information"
    version = 1

    def __call__(self, truth: Truth, prediction: Prediction) -> dict[str, float]:
        """NMI and ARI, in percent."""
        return {
            "nmi": 100 * nmi(truth.target, prediction.cluster),
            "ari": 100 * ari(truth.target, prediction.cluster),
        }


class Confidence(Evaluator):
    """What can be said without any truth: mean confidence and how the clusters are used."""

    name = "confidence"
    version = 1
    needs_truth = False

    def __call__(self, truth: Truth, prediction: Prediction) -> dict[str, float]:
        """Mean largest probability (percent), clusters in use, share of rows put into base classes."""
        result = {
            "clusters_used": float(len(np.unique(prediction.cluster))),
            "predicted_base_share": 100 * float((prediction.cluster < truth.num_base).mean()),
        }
        if prediction.confidence is not None:
            result["confidence"] = 100 * float(prediction.confidence.mean())
        return result
