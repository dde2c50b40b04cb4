"""Evaluation within training, and the predictions that count under a rule other than `last`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gcdbench.contracts import Method, Prediction, Stage
from gcdbench.training.scoring import predict, score

if TYPE_CHECKING:
    from gcdbench.prepare.run_context import Workspace


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
    space: Workspace, method: Method, stage: Stage, epoch: int, selected: Selected | None
) -> tuple[dict[str, float], Selected | None]:
    """Score the rows of the protocol and, if the rule says so, keep this epoch's predictions."""
    rows, rule = space.config.eval.rows, space.rule
    prediction = predict(space, method, rows)
    elsewhere = None if rule.metric is None or rule.rows == rows else predict(space, method, rule.rows)
    if not space.ranks.first:  # the first rank scores; the others know that there is something to select from
        return {}, None if rule.metric is None else Selected(0.0, stage.name, epoch + 1, prediction)
    metrics = score(space, prediction, rows).metrics
    if rule.metric is None:
        return metrics, None
    value = metrics if elsewhere is None else score(space, elsewhere, rule.rows).metrics
    mark = value[rule.metric]
    if selected is None or mark > selected.score:
        selected = Selected(mark, stage.name, epoch + 1, prediction)
    return metrics, selected
