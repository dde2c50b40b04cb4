"""The training loop: stages, epochs, steps. One trunk pass per batch feeds the lane."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gcdbench.contracts import Batch, Method, Prediction, Progress, Stage
from gcdbench.data.views import ViewPlan, random_plan
from gcdbench.engine import checkpoint
from gcdbench.engine.faults import plugin_call
from gcdbench.engine.lane import Lane
from gcdbench.engine.reporter import Reporter
from gcdbench.engine.scoring import predict, score
from gcdbench.engine.seeding import fenced_rng, generator
from gcdbench.engine.trackers import Trackers
from gcdbench.engine.workspace import Workspace
from gcdbench.results.rundir import RunDirectory


@dataclass
class Selected:
    """The predictions that count so far under a rule other than `last`."""

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


def train(
    space: Workspace, folder: RunDirectory, reporter: Reporter, trackers: Trackers | None = None
) -> tuple[Method, Selected | None]:
    """Train from the start or the last checkpoint; the method as it is after the last epoch."""
    method = space.method()
    lane = Lane(space.config.method, method, space.compute)
    saved = checkpoint.load(folder.path, space.compute.device)
    with plugin_call(lane.name, "stages"):
        stages = list(method.stages())
    first_stage, first_epoch = (saved["stage"], saved["epoch"]) if saved else (0, 0)
    selected = Selected.restore(saved["selected"] if saved else None)
    trackers = trackers or Trackers((), reporter.warn)
    done = sum(s.epochs for s in stages[:first_stage]) + first_epoch
    trackers.start(folder.path, space.config.as_dict(), done, space.sampler.steps)
    reporter.started(space, first_epoch)
    for number, stage in enumerate(stages):
        if number < first_stage:
            continue
        lane.start_stage(stage)
        if saved is not None and number == first_stage:
            lane.restore(saved["lane"])
        for epoch in range(first_epoch if number == first_stage else 0, stage.epochs):
            line = _epoch(space, lane, stage, epoch, reporter, trackers)
            t = _progress(space, stage, epoch, 0)
            if _evaluates(space, epoch, stage):
                started = time.monotonic()
                line["metrics"], selected = _evaluate(space, method, stage, epoch, selected)
                line["evaluation_seconds"] = round(time.monotonic() - started, 3)
            trackers.epoch(line)
            checkpoint.save(
                folder.path,
                {
                    "stage": number,
                    "epoch": epoch + 1,
                    "lane": lane.state(),
                    "selected": None if selected is None else selected.state(),
                },
            )
            reporter.epoch(t, line)
    return method, selected


def _progress(space: Workspace, stage: Stage, epoch: int, step: int, random: torch.Generator | None = None) -> Progress:
    return Progress(stage.name, epoch, stage.epochs, step, space.sampler.steps, random)


def epoch_plans(space: Workspace, stage: Stage, epoch: int) -> list[ViewPlan]:
    """The rows and views of every step of an epoch; depends on seed, stage and epoch only."""
    random = generator(space.config.seed, "batches", stage.name, epoch)
    return [random_plan(rows, space.config.views, random) for rows in space.sampler.epoch(random)]


def batches(space: Workspace, plans: list[ViewPlan]) -> Any:
    """Batches with trunk tokens; labels that are hidden are -1."""
    split, device = space.data.split, space.compute.device
    labelled = np.zeros(len(split.target), dtype=bool)
    labelled[split.labelled] = True
    is_labelled = torch.from_numpy(labelled)
    visible = torch.from_numpy(np.where(labelled, split.target, -1))
    for plan, tokens in space.source.stream("train", plans):
        facts = (visible[plan.rows], is_labelled[plan.rows], plan.rows)
        if space.compute.pins:
            facts = tuple(f.pin_memory() for f in facts)  # type: ignore[assignment]
        target, lab, index = (f.to(device, non_blocking=True) for f in facts)
        yield Batch(tokens, target, lab, index, plan.views)


def _epoch(
    space: Workspace, lane: Lane, stage: Stage, epoch: int, reporter: Reporter, trackers: Trackers
) -> dict[str, Any]:
    seed, device = space.config.seed, space.compute.device
    started = time.monotonic()
    random = generator(seed, "steps", stage.name, epoch, device=device)
    t = _progress(space, stage, epoch, 0, random)
    with fenced_rng(seed, "ambient", stage.name, epoch):
        lane.start_epoch(t)
        lane.method.eval()
        with torch.no_grad(), plugin_call(lane.name, "on_epoch_start"):
            lane.method.on_epoch_start(space.pool(space.config.eval.rows, stage.name, epoch), t)
        lane.method.train()
        for step, batch in enumerate(batches(space, epoch_plans(space, stage, epoch))):
            t = _progress(space, stage, epoch, step, random)
            lane.step(batch, t)
            reporter.step(t, lane)
            trackers.step(t, lane)
    return {
        "stage": stage.name,
        "epoch": epoch + 1,
        "losses": lane.means(),
        "lr": lane.learning_rates(),
        "seconds": round(time.monotonic() - started, 3),
    }


def _evaluates(space: Workspace, epoch: int, stage: Stage) -> bool:
    every = space.config.eval.every or (1 if space.rule.metric is not None else 0)
    return bool(every) and ((epoch + 1) % every == 0 or epoch + 1 == stage.epochs)


def _evaluate(
    space: Workspace, method: Method, stage: Stage, epoch: int, selected: Selected | None
) -> tuple[dict[str, float], Selected | None]:
    """Score the rows of the protocol and, if the rule says so, keep this epoch's predictions."""
    rows, rule = space.config.eval.rows, space.rule
    prediction = predict(space, method, rows)
    metrics = score(space, prediction, rows).metrics
    if rule.metric is None:
        return metrics, None
    value = metrics if rule.rows == rows else score(space, predict(space, method, rule.rows), rule.rows).metrics
    mark = value[rule.metric]
    if selected is None or mark > selected.score:
        selected = Selected(mark, stage.name, epoch + 1, prediction)
    return metrics, selected
