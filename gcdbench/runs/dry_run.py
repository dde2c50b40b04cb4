"""What a run would do: counts, sizes and a time estimate from two real steps."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcdbench.prepare.run_context import Workspace
from gcdbench.prepare.token_stores import planned_stores
from gcdbench.runs.disk_space import free_bytes, require_room, run_bytes
from gcdbench.runs.execute import directory, status
from gcdbench.runs.rehearsal import Rehearsal
from gcdbench.training.batches import batches, first_plans
from gcdbench.training.stages import stages_of

STEPS = 2


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step."""

    trunk: float
    """Views and trunk pass, which lanes share."""
    own: float
    """The method's own part."""

    @property
    def total(self) -> float:
        """Of a run alone."""
        return self.trunk + self.own


def step_time(space: Workspace) -> tuple[StepTime, str | None]:
    """Time of the faster of two steps, from a rehearsal: what would fail in a run fails here. And what it noted."""
    stages = stages_of(space, space.method())
    if not stages:
        return StepTime(0.0, 0.0), None
    trunk = float("inf")
    started = time.monotonic()
    for _ in batches(space, first_plans(space, stages[0], STEPS)):
        space.compute.wait()
        trunk, started = min(trunk, time.monotonic() - started), time.monotonic()
    rehearsal = Rehearsal()
    with tempfile.TemporaryDirectory(prefix="gcdbench-") as folder:
        note = rehearsal.of(space, Path(folder))
    return StepTime(trunk, rehearsal.step_seconds), note


def describe_plan(space: Workspace, runs: Path) -> dict[str, Any]:
    """The plan of one run as plain data."""
    config, split = space.config, space.data.split
    folder = directory(space, runs)
    told = {"finished": "finished, would be shown", "unfinished": "unfinished, would be continued", "new": "new"}
    told["failed"] = f"failed before, would be tried again ({folder.failure})"
    method = space.method()
    steps = space.sampler.steps
    epochs = sum(stage.epochs for stage in stages_of(space, method))
    disk = run_bytes(space)
    require_room([disk], runs)
    space.compute.start_measuring()
    taken, note = step_time(space)
    per_step = taken.total
    trunk = sum(p.numel() for p in space.backbone.trunk.parameters())
    return {
        "method": config.method,
        "recipe": config.recipe,
        "dataset": config.dataset,
        "seed": config.seed,
        "run_id": space.run_id,
        "dir": str(folder.path),
        "status": told[status(folder)],
        "fingerprint": space.protocol.fingerprint(),
        "labelled_rows": len(split.labelled),
        "unlabelled_rows": len(split.unlabelled),
        "base_classes": len(split.base),
        "novel_classes": len(split.novel),
        "k": space.k,
        "scored_rows": len(space.scored_rows(config.eval.rows)),
        "backbone": space.backbone_info.architecture,
        "weights_hash": space.backbone_info.weights_hash,
        "trained_parameters": sum(p.numel() for _, p in method.trained_parameters()),
        "total_parameters": trunk + sum(p.numel() for p in method.parameters()),
        "epochs": epochs,
        "steps_per_epoch": steps,
        "seconds_per_step": round(per_step, 4),
        "estimated_training_seconds": round(per_step * steps * epochs, 1),
        "device": space.compute.describe(),
        "memory_bytes": space.compute.peak_memory(),
        "disk_bytes": disk,
        "disk_free_bytes": free_bytes(runs),
        "stores": planned_stores(space),
        "notes": [*space.warnings, *([] if note is None else [note])],
        "presets": list(space.resolved.presets),
        "config": config.as_dict(),
        "sources": dict(space.resolved.sources),
    }
