"""What a run would do: counts, sizes and a time estimate from two real steps."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcdbench.contracts import Progress
from gcdbench.engine.disk import free_bytes, require_room, run_bytes
from gcdbench.engine.feed import batches, first_plans
from gcdbench.engine.lane import Lane
from gcdbench.engine.rehearsal import Rehearsal
from gcdbench.engine.run import directory, status
from gcdbench.engine.seeding import fenced_rng, generator
from gcdbench.engine.stages import stages_of
from gcdbench.engine.stores import planned_stores
from gcdbench.engine.workspace import Workspace

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


def step_time(space: Workspace) -> StepTime:
    """Time of the faster of two steps with a throw-away method and fresh views; what fails in a step fails here."""
    method = space.method()
    stages = stages_of(space, method)
    if not stages:
        return StepTime(0.0, 0.0)
    lane = Lane(space.config.method, method, space.compute)
    lane.start_stage(stages[0])
    trunk = own = float("inf")
    random = generator(space.config.seed, "preflight", device=space.compute.device)
    with fenced_rng(space.config.seed, "preflight"):
        started = time.monotonic()
        for step, (_, batch) in enumerate(batches(space, first_plans(space, stages[0], STEPS))):
            space.compute.wait()
            arrived = time.monotonic()
            t = Progress(stages[0].name, 0, stages[0].epochs, step, space.sampler.steps, random)
            if step == 0:
                lane.start_epoch(t)
            lane.step(batch, t)
            lane.means()
            done = time.monotonic()
            trunk, own, started = min(trunk, arrived - started), min(own, done - arrived), done
    return StepTime(trunk, own)


def rehearse(space: Workspace) -> None:
    """What a real run tries before it trains, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="gcdbench-") as folder:
        Rehearsal(space).of(space, Path(folder))


def describe_plan(space: Workspace, runs: Path) -> dict[str, Any]:
    """The plan of one run as plain data."""
    config, split = space.config, space.data.split
    folder = directory(space, runs)
    told = {"finished": "finished, would be shown", "unfinished": "unfinished, would be continued", "new": "new"}
    method = space.method()
    steps = space.sampler.steps
    epochs = sum(stage.epochs for stage in stages_of(space, method))
    disk = run_bytes(space)
    require_room([disk], runs)
    space.compute.start_measuring()
    per_step = step_time(space).total
    rehearse(space)
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
        "presets": list(space.resolved.presets),
        "config": config.as_dict(),
        "sources": dict(space.resolved.sources),
    }
