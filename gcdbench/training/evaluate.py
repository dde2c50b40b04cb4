"""Predictions, their scores, and the epoch that counts: the method answers first, then evaluators see the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gcdbench.contracts import Evaluator, Method, Prediction, Stage, Truth
from gcdbench.errors import PluginError
from gcdbench.prepare.pool import ImagePool
from gcdbench.prepare.run_context import RunContext, run_pool
from gcdbench.system.plugin_call import plugin_call
from gcdbench.system.seeding import fenced_rng


def predict(ctx: RunContext, method: Method, rows: str, pool: ImagePool | None = None) -> Prediction:
    """The method's answer for the scored rows, checked, in the order of the dataset (for the queries of another pool,
    in the order of these)."""
    name = ctx.config.method
    was_training = method.training
    own, pool = pool, pool or run_pool(ctx, rows, "predict")
    method.eval()
    try:
        with torch.no_grad(), fenced_rng(ctx.config.seed, "predict"), plugin_call(name, "predict"):
            answer = method.predict(pool)
    finally:
        method.train(was_training)
    if not isinstance(answer, Prediction):
        raise PluginError(f"The method '{name}' must return a gcdbench.Prediction from predict, not {answer!r}.")
    expected = len(pool.queries)
    confidence = answer.confidence
    if confidence is not None and not (isinstance(confidence, np.ndarray) and confidence.shape == (expected,)):
        raise PluginError(f"The method '{name}' must give a numpy array of one confidence per row, or None.")
    cluster = np.asarray(answer.cluster)
    if cluster.shape != (expected,) or not np.issubdtype(cluster.dtype, np.integer):
        raise PluginError(
            f"The method '{name}' predicted an array of shape {cluster.shape} and type {cluster.dtype}; "
            f"{expected} whole numbers were asked for."
        )
    if expected and cluster.min() < 0:
        raise PluginError(f"The method '{name}' predicted a negative class.")
    for branch, values in answer.base.items():
        if np.shape(values) != (expected,):
            raise PluginError(f"The method '{name}' gives base classes '{branch}' of shape {np.shape(values)}.")
    # In plain form, so that it can be kept in a checkpoint and written.
    plain = Prediction(
        np.ascontiguousarray(cluster, dtype=np.int64),
        None if confidence is None else np.ascontiguousarray(confidence, dtype=np.float32),
        {str(branch): np.ascontiguousarray(values, dtype=np.int64) for branch, values in answer.base.items()},
    )
    if own is not None:
        return plain
    return plain.take(ctx.data.by_row("train" if rows == "unlabelled" else "test", pool.queries.index))


@dataclass(frozen=True)
class Scores:
    """The numbers of all evaluators."""

    metrics: dict[str, float]
    by_evaluator: dict[str, Any]
    """Per evaluator its version and the names of its metrics."""


def score(ctx: RunContext, prediction: Prediction, rows: str) -> Scores:
    """Ask every evaluator of the run."""
    unknown = Truth(np.full(len(prediction.cluster), -1), len(ctx.data.split.base), ctx.k)
    return score_with(ctx.evaluators, prediction, ctx.truth(rows), unknown, ctx.notes.add)


def score_with(
    evaluators: Sequence[Evaluator],
    prediction: Prediction,
    truth: Truth | None,
    unknown: Truth,
    warn: Callable[[str], None],
) -> Scores:
    """Ask evaluators; those that need a truth are left out where there is none, and the others get ``unknown``."""
    metrics: dict[str, float] = {}
    by_evaluator: dict[str, Any] = {}
    for evaluator in sorted(evaluators, key=lambda e: not e.headline):
        if truth is None and evaluator.needs_truth:
            continue
        seen = unknown if truth is None else truth  # without one, only quantities that ignore the targets are left
        try:
            with plugin_call(evaluator.name, "__call__", kind="evaluator"):
                found = {k: float(v) for k, v in evaluator(seen, prediction).items() if math.isfinite(v)}
        except PluginError as fault:
            if evaluator.headline:
                raise
            warn(str(fault))
            continue
        # Headline numbers come first: no other evaluator can replace one by giving its own the same name.
        named = {k if k not in metrics else f"{evaluator.name}.{k}": v for k, v in found.items()}
        metrics.update(named)
        by_evaluator[evaluator.name] = {"version": evaluator.version, "metrics": sorted(named)}
    return Scores(metrics, by_evaluator)


@dataclass
class Selected:
    """The predictions that count so far."""

    score: float
    stage: str
    epoch: int
    prediction: Prediction

    def state(self) -> dict[str, Any]:
        """As a checkpoint can hold it."""
        p = self.prediction
        return {
            "score": self.score,
            "stage": self.stage,
            "epoch": self.epoch,
            "cluster": torch.from_numpy(p.cluster),
            "confidence": None if p.confidence is None else torch.from_numpy(p.confidence),
            "base": {name: torch.from_numpy(values) for name, values in p.base.items()},
        }

    @staticmethod
    def restore(state: dict[str, Any] | None) -> Selected | None:
        """From a checkpoint."""
        if state is None:
            return None
        confidence = state["confidence"]
        prediction = Prediction(
            state["cluster"].cpu().numpy(),
            None if confidence is None else confidence.cpu().numpy(),
            {name: values.cpu().numpy() for name, values in state["base"].items()},
        )
        return Selected(state["score"], state["stage"], state["epoch"], prediction)


def evaluate(
    ctx: RunContext, method: Method, stage: Stage, epoch: int, selected: Selected | None
) -> tuple[dict[str, float], Selected | None]:
    """Score the rows of the protocol and, if the rule says so, keep this epoch's predictions."""
    rows, rule = ctx.config.eval.rows, ctx.rule
    prediction = predict(ctx, method, rows)
    elsewhere = None if rule.metric is None or rule.rows == rows else predict(ctx, method, rule.rows)
    if not ctx.ranks.first:  # the first rank scores; the others know that there is something to select from
        return {}, None if rule.metric is None else Selected(0.0, stage.name, epoch + 1, prediction)
    metrics = score(ctx, prediction, rows).metrics
    if rule.metric is None:
        return metrics, None
    value = metrics if elsewhere is None else score(ctx, elsewhere, rule.rows).metrics
    mark = value[rule.metric]
    if selected is None or mark > selected.score:
        selected = Selected(mark, stage.name, epoch + 1, prediction)
    return metrics, selected
