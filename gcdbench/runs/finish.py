"""What a finished run leaves behind: predictions with names, and the record."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

import gcdbench
from gcdbench.contracts import Method, Prediction
from gcdbench.prepare.run_context import Workspace
from gcdbench.records.provenance import git_state, package_folder, versions
from gcdbench.records.record import SCHEMA, Record, hashes_of
from gcdbench.records.run_directory import RunDirectory
from gcdbench.runs.flops import flops_per_step
from gcdbench.training.evaluate import Selected
from gcdbench.training.scoring import Scores
from gcdbench.training.stages import stages_of


def write_names(space: Workspace, folder: RunDirectory, prediction: Prediction) -> None:
    """`predictions.csv`: which file got which class or new cluster."""
    split = space.data.split
    index = space.data.index if space.config.eval.rows == "unlabelled" else space.data.test
    assert index is not None
    names = [index.class_names[c] for c in split.base]
    names += [f"novel {n + 1}" for n in range(max(space.k, int(prediction.cluster.max()) + 1) - len(names))]
    rows = space.scored_rows(space.config.eval.rows)
    confidence = prediction.confidence
    if confidence is None:
        confidence = np.full(len(rows), np.nan, dtype=np.float32)
    table = (
        (index.items[row], int(c), names[c], "" if np.isnan(p) else f"{p:.4f}")
        for row, c, p in zip(rows, prediction.cluster, confidence, strict=True)
    )
    folder.write_table(("item", "cluster", "name", "confidence"), table)


def count_flops(space: Workspace, method: Method) -> dict[str, int] | None:
    """Operations per step, or None with a warning: a number that is nice to have must not cost a finished run."""
    try:
        return flops_per_step(space, method)
    except Exception as fault:  # a plugin's forward, the counter and the device can all fail in their own ways
        space.warnings.append(f"The operations per step could not be counted ({type(fault).__name__}: {fault}).")
        return None


def make_record(
    space: Workspace,
    folder: RunDirectory,
    method: Method,
    prediction: Prediction,
    scores: Scores,
    selected: Selected | None,
    lanes: int,
) -> Record:
    """Collect what the record holds; the method is used up by counting its operations."""
    config, split = space.config, space.data.split
    plugin = space.plan.method
    stages = stages_of(space, method)
    own = sum(p.numel() for p in method.parameters())
    trunk = sum(p.numel() for p in space.backbone.trunk.parameters())
    stage, epoch = (stages[-1].name, stages[-1].epochs) if stages else ("", 0)
    if selected is not None:
        stage, epoch = selected.stage, selected.epoch
    return Record(
        schema=SCHEMA,
        run_id=space.run_id,
        method=config.method,
        dataset=config.dataset,
        recipe=config.recipe,
        seed=config.seed,
        dir=str(folder.path),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        metrics=scores.metrics,
        hashes=hashes_of(folder.path, scores.metrics),
        evaluators=scores.by_evaluator,
        selected={"rule": config.eval.selection, "stage": stage, "epoch": epoch},
        config=config.as_dict(),
        sources=dict(space.resolved.sources),
        chosen=list(space.resolved.chosen),
        presets=list(space.resolved.presets),
        protocol=space.protocol.as_dict(),
        fingerprint=space.protocol.fingerprint(),
        backbone=space.backbone_info.as_dict(),
        parameters={
            "trained": sum(p.numel() for _, p in method.trained_parameters()),
            "total": own + trunk,
        },
        data={
            "labelled": len(split.labelled),
            "unlabelled": len(split.unlabelled),
            "base_classes": len(split.base),
            "novel_classes": len(split.novel),
            "scored": len(space.scored_rows(config.eval.rows)),
            "clusters": len(np.unique(prediction.cluster)),
            **({"skipped": len(space.data.bad_items())} if space.data.bad_items() else {}),
        },
        k_estimate=None if space.estimated is None else space.estimated.as_dict(),
        timings=timings(space, folder),
        peak_memory=space.compute.peak_memory(),  # before counting operations, which takes memory of its own
        flops_per_step=count_flops(space, method),
        device=space.compute.describe(),
        world_size=space.ranks.size,
        lanes=lanes,
        versions=versions(),
        plugin={"package": plugin.package, "version": plugin.version},
        git={
            "core": git_state(package_folder(gcdbench.__name__)),
            "plugin": git_state(package_folder(plugin.target)),
        },
        warnings=space.warnings,
    )


def timings(space: Workspace, folder: RunDirectory) -> dict[str, float]:
    """Seconds per phase. Training counts every epoch of the run, whichever process trained it."""
    lines = folder.epochs()
    total: dict[str, Any] = {
        **space.timings,
        "train": sum(line.get("seconds", 0.0) for line in lines),
        "evaluate": space.timings["evaluate"] + sum(line.get("evaluation_seconds", 0.0) for line in lines),
    }
    return {name: round(seconds, 3) for name, seconds in total.items()}
