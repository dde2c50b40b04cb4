"""What a run would do: counts, sizes and a time estimate from two real steps."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.request import RunRequest
from gcdbench.prepare.run_context import RunContext, build_method
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.prepare.token_stores import missing_views, planned_stores
from gcdbench.runs.execute import ExecuteOptions, prepare_requests, run_directory
from gcdbench.runs.expectation import image_seconds, require_room, run_bytes, warn_if_slow
from gcdbench.runs.rehearsal import Rehearsal
from gcdbench.system.files import free_bytes
from gcdbench.system.observer import Observer
from gcdbench.training.batches import batches, first_plans, stages_of

STEPS = 2


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step."""

    trunk: float
    """Views and trunk pass, which lanes share; nothing where training reads stored views."""
    view: float
    """Encoding one view."""
    own: Mapping[str, float]
    """The method's own part, by stage."""

    def training(self, ctx: RunContext, lanes: int = 1, done: int = 0) -> float:
        """Of what is left of a run after ``done`` epochs: its steps, and its share of the views that stores lack."""
        seconds = self.view * missing_views(ctx) / lanes
        for stage in stages_of(ctx, build_method(ctx)):
            left = max(0, stage.epochs - done)
            done = max(0, done - stage.epochs)
            seconds += left * ctx.sampler.steps * (self.trunk / lanes + self.own.get(stage.name, 0.0))
        return seconds


def step_time(ctx: RunContext) -> tuple[StepTime, str | None]:
    """Time of the faster of two steps, from a rehearsal: what would fail in a run fails here. And what it noted."""
    stages = stages_of(ctx, build_method(ctx))
    if not stages:
        return StepTime(0.0, 0.0, {}), None
    trunk = float("inf")
    started = time.monotonic()
    for _ in batches(ctx, first_plans(ctx, stages[0], STEPS)):
        ctx.compute.wait()
        trunk, started = min(trunk, time.monotonic() - started), time.monotonic()
    rehearsal = Rehearsal()
    with tempfile.TemporaryDirectory(prefix="gcdbench-") as folder:
        note = rehearsal.of(ctx, Path(folder))
    view = trunk / (ctx.config.train.batch_size * ctx.config.views.count)
    return StepTime(0.0 if ctx.config.store.train_views else trunk, view, rehearsal.step_seconds), note


def describe_requests(
    requests: Sequence[RunRequest], environment: RunEnvironment, observer: Observer, force: bool = False
) -> list[dict[str, Any]]:
    """What each run of these requests would be, each once."""
    asked = prepare_requests(requests, SharedResources(environment, observer), ExecuteOptions(force=force))
    once = {result.ctx.run_id: result.ctx for result in asked if result.ctx is not None}
    for ctx in list(once.values())[:1]:
        warn_if_slow(ctx, image_seconds(ctx), observer)
    return [describe_run(ctx) for ctx in once.values()]


def describe_run(ctx: RunContext) -> dict[str, Any]:
    """What one run would be, as plain data."""
    config, split = ctx.config, ctx.data.split
    folder, runs = run_directory(ctx), Path(ctx.environment.runs)
    spoken = {"finished": "finished, would be shown", "unfinished": "unfinished, would be resumed", "new": "new"}
    spoken["failed"] = f"failed before, would be tried again ({folder.failure})"
    method = build_method(ctx)
    steps = ctx.sampler.steps
    epochs = sum(stage.epochs for stage in stages_of(ctx, method))
    disk = run_bytes(ctx)
    require_room([disk], runs)
    ctx.compute.start_measuring()
    taken, note = step_time(ctx)
    per_step = taken.trunk + max(taken.own.values(), default=0.0)
    trunk = sum(p.numel() for p in ctx.backbone.trunk.parameters())
    return {
        "method": config.method,
        "recipe": config.recipe,
        "dataset": config.dataset,
        "seed": config.seed,
        "run_id": ctx.run_id,
        "dir": str(folder.path),
        "status": spoken[folder.status],
        "fingerprint": ctx.protocol.fingerprint(),
        "labelled_rows": len(split.labelled),
        "unlabelled_rows": len(split.unlabelled),
        "base_classes": len(split.base),
        "novel_classes": len(split.novel),
        "k": ctx.k,
        "scored_rows": len(ctx.scored_rows(config.eval.rows)),
        "backbone": ctx.backbone_info.architecture,
        "weights_hash": ctx.backbone_info.weights_hash,
        "trained_parameters": sum(p.numel() for _, p in method.trained_parameters()),
        "total_parameters": trunk + sum(p.numel() for p in method.parameters()),
        "epochs": epochs,
        "steps_per_epoch": steps,
        "seconds_per_step": round(per_step, 4),
        "estimated_training_seconds": round(taken.training(ctx), 1),
        "device": ctx.compute.describe(),
        "memory_bytes": ctx.compute.peak_memory(),
        "disk_bytes": disk,
        "disk_free_bytes": free_bytes(runs),
        "stores": planned_stores(ctx),
        "notes": [*ctx.notes.warnings, *([] if note is None else [note])],
        "presets": list(ctx.resolved.presets),
        "config": config.as_dict(),
        "sources": dict(ctx.resolved.sources),
    }
