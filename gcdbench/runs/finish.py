"""The end of a run: predictions with names, scores, and the record."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np

import gcdbench
from gcdbench.contracts import Method, Prediction
from gcdbench.prepare.run_context import RunContext
from gcdbench.records.provenance import git_state, package_folder, versions
from gcdbench.records.record import SCHEMA, Record, hashes_of
from gcdbench.records.run_directory import RunDirectory
from gcdbench.runs.flops import flops_per_step
from gcdbench.system.files import write_json
from gcdbench.training.batches import stages_of
from gcdbench.training.evaluate import Scores, predict, score
from gcdbench.training.lane import Lane


def finish_run(lane: Lane) -> None:
    """Predict, score and write the record; the method is released."""
    ctx, folder, method = lane.ctx, lane.folder, lane.trainer.method
    started = time.monotonic()
    rows = ctx.config.eval.rows
    prediction = lane.selected.prediction if lane.selected else predict(ctx, method, rows)
    if not lane.first:
        lane.close()
        return
    ctx.check_files()
    lane.require_folder()
    truth = ctx.truth(rows)
    folder.write_predictions(ctx.scored_rows(rows), prediction, None if truth is None else truth.target)
    write_names(ctx, folder, prediction)
    ctx.notes.timings["predict"] = time.monotonic() - started
    started = time.monotonic()
    scores = score(ctx, prediction, rows)
    ctx.notes.timings["evaluate"] = time.monotonic() - started
    record = make_record(lane, method, prediction, scores)
    write_json(folder.record_file, record.as_dict())
    with suppress(OSError):  # the run is finished, whatever becomes of its log
        folder.log("finished")
    lane.trackers.finish(record.as_dict())
    lane.take(record)


def write_names(ctx: RunContext, folder: RunDirectory, prediction: Prediction) -> None:
    """`predictions.csv`: which file got which class or new cluster."""
    split = ctx.data.split
    index = ctx.data.index if ctx.config.eval.rows == "unlabelled" else ctx.data.test
    assert index is not None
    names = [index.class_names[c] for c in split.base]
    names += [f"novel {n + 1}" for n in range(max(ctx.k, int(prediction.cluster.max()) + 1) - len(names))]
    rows = ctx.scored_rows(ctx.config.eval.rows)
    confidence = prediction.confidence
    if confidence is None:
        confidence = np.full(len(rows), np.nan, dtype=np.float32)
    table = (
        (index.items[row], int(c), names[c], "" if np.isnan(p) else f"{p:.4f}")
        for row, c, p in zip(rows, prediction.cluster, confidence, strict=True)
    )
    folder.write_table(("item", "cluster", "name", "confidence"), table)


def count_flops(ctx: RunContext, method: Method) -> dict[str, int] | None:
    """Operations per step, or None with a warning: a number that is nice to have must not cost a finished run."""
    try:
        return flops_per_step(ctx, method)
    except Exception as fault:  # a plugin's forward, the counter and the device can all fail in their own ways
        ctx.notes.add(f"The operations per step could not be counted ({type(fault).__name__}: {fault}).")
        return None


def make_record(lane: Lane, method: Method, prediction: Prediction, scores: Scores) -> Record:
    """Collect what the record holds; the method is used up by counting its operations."""
    ctx, folder, selected = lane.ctx, lane.folder, lane.selected
    # An earlier process may have trained some epochs with more lanes.
    lanes = max([lane.most_sharing, *(int(line.get("lanes", 1)) for line in folder.epochs())])
    config, split = ctx.config, ctx.data.split
    plugin = ctx.asked.method
    stages = stages_of(ctx, method)
    own = sum(p.numel() for p in method.parameters())
    trunk = sum(p.numel() for p in ctx.backbone.trunk.parameters())
    stage, epoch = (stages[-1].name, stages[-1].epochs) if stages else ("", 0)
    if selected is not None:
        stage, epoch = selected.stage, selected.epoch
    return Record(
        schema=SCHEMA,
        run_id=ctx.run_id,
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
        sources=dict(ctx.resolved.sources),
        chosen=list(ctx.resolved.chosen),
        presets=list(ctx.resolved.presets),
        protocol=ctx.protocol.as_dict(),
        fingerprint=ctx.protocol.fingerprint(),
        backbone=ctx.backbone_info.as_dict(),
        parameters={
            "trained": sum(p.numel() for _, p in method.trained_parameters()),
            "total": own + trunk,
        },
        data={
            "labelled": len(split.labelled),
            "unlabelled": len(split.unlabelled),
            "base_classes": len(split.base),
            "novel_classes": len(split.novel),
            "scored": len(ctx.scored_rows(config.eval.rows)),
            "clusters": len(np.unique(prediction.cluster)),
            **({"skipped": len(ctx.data.bad_items())} if ctx.data.bad_items() else {}),
        },
        k_estimate=None if ctx.estimated is None else ctx.estimated.as_dict(),
        timings=timings(ctx, folder),
        peak_memory=ctx.compute.peak_memory(),  # before counting operations, which takes memory of its own
        flops_per_step=count_flops(ctx, method),
        device=ctx.compute.describe(),
        world_size=ctx.ranks.size,
        lanes=lanes,
        versions=versions(),
        plugin={"package": plugin.package, "version": plugin.version},
        git={
            "core": git_state(package_folder(gcdbench.__name__)),
            "plugin": git_state(package_folder(plugin.target)),
        },
        warnings=ctx.notes.warnings,
    )


def timings(ctx: RunContext, folder: RunDirectory) -> dict[str, float]:
    """Seconds per phase. Training counts every epoch of the run, whichever process trained it."""
    lines = folder.epochs()
    total: dict[str, Any] = {
        **ctx.notes.timings,
        "train": sum(line.get("seconds", 0.0) for line in lines),
        "evaluate": ctx.notes.timings["evaluate"] + sum(line.get("evaluation_seconds", 0.0) for line in lines),
    }
    return {name: round(seconds, 3) for name, seconds in total.items()}
