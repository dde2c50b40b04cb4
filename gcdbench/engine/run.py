"""One run from request to record; the same for the command line and for Python."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.contracts import Method, Prediction
from gcdbench.data.locate import data_root as choose_root
from gcdbench.engine.device import Compute, choose_device
from gcdbench.engine.loop import Selected, train
from gcdbench.engine.reporter import Reporter
from gcdbench.engine.request import Plan, RunRequest, plan
from gcdbench.engine.scoring import predict, score
from gcdbench.engine.workspace import Cache, Workspace, prepare
from gcdbench.files import write_json
from gcdbench.results.record import SCHEMA, Record, read_record, versions
from gcdbench.results.rundir import RunDirectory

DEFAULT_RUNS = Path("runs")


def run(
    method: str | None = None,
    dataset: str | None = None,
    *,
    recipe: str | None = None,
    seeds: Sequence[int] | int | None = None,
    backbone: str | None = None,
    epochs: int | None = None,
    k: int | None = None,
    label_ratio: float | None = None,
    novel_ratio: float | None = None,
    precision: str | None = None,
    settings: Mapping[str, Any] | None = None,
    config: Path | str | None = None,
    device: str = "auto",
    runs: Path | str = DEFAULT_RUNS,
    data_root: Path | str | None = None,
    workers: int | None = None,
    force: bool = False,
    reporter: Reporter | None = None,
) -> list[Record]:
    """Train and score a method on a dataset, once per seed, and return the records.

    Finished runs are returned as they are, unfinished ones continued; ``force`` repeats them. ``settings`` maps
    `section.key` to values, as `--set` does on the command line.
    """
    request = RunRequest(
        method=method,
        dataset=dataset,
        recipe=recipe,
        seeds=(seeds,) if isinstance(seeds, int) else None if seeds is None else tuple(seeds),
        backbone=backbone,
        epochs=epochs,
        k=k,
        label_ratio=label_ratio,
        novel_ratio=novel_ratio,
        precision=precision,
        settings=dict(settings or {}),
        config=None if config is None else Path(config),
    )
    root = choose_root(None if data_root is None else Path(data_root))
    reporter = reporter or Reporter()
    spaces = workspaces(plan(request), device, root, workers, reporter)
    return [execute(space, Path(runs), force, reporter) for space in spaces]


def workspaces(planned: Plan, device: str, root: Path, workers: int | None, reporter: Reporter) -> Iterator[Workspace]:
    """One workspace per seed, sharing data and backbone."""
    cache = Cache()
    chosen = choose_device(device)
    for number, resolved in enumerate(planned.runs):
        reporter.phase("preparing data and backbone")
        compute = Compute(chosen, resolved.config.train.precision)
        warn = reporter.warn if number == 0 else None
        yield prepare(planned, resolved, compute, root, workers, cache, warn)


def directory(space: Workspace, runs: Path) -> RunDirectory:
    """Where a run lives."""
    return RunDirectory(runs / space.config.method / space.config.dataset / space.run_id)


def execute(space: Workspace, runs: Path, force: bool, reporter: Reporter) -> Record:
    """Show a finished run, continue an unfinished one, or train from the start."""
    folder = directory(space, runs)
    if force:
        folder.clear()
    if folder.finished:
        return read_record(folder.record_file)
    folder.open({**space.config.as_dict(), "sources": dict(space.resolved.sources), "run_id": space.run_id})
    folder.log(f"start, device {space.compute.describe()}")
    try:
        return _execute(space, folder, reporter)
    except BaseException as fault:
        folder.log(f"stopped: {type(fault).__name__}: {fault}\n{traceback.format_exc()}")
        raise
    finally:
        reporter.finished()


def _execute(space: Workspace, folder: RunDirectory, reporter: Reporter) -> Record:
    started = time.monotonic()
    method, selected = train(space, folder, reporter)
    space.timings["train"] = time.monotonic() - started
    reporter.phase("predicting")
    started = time.monotonic()
    rows = space.config.eval.rows
    prediction = selected.prediction if selected else predict(space, method, rows)
    truth = space.truth(rows)
    folder.write_predictions(space.scored_rows(rows), prediction, None if truth is None else truth.target)
    write_names(space, folder, prediction)
    space.timings["predict"] = time.monotonic() - started
    reporter.phase("evaluating")
    started = time.monotonic()
    metrics = score(space, prediction, rows)
    space.timings["evaluate"] = time.monotonic() - started
    record = make_record(space, folder, method, metrics, selected)
    write_json(folder.record_file, record.as_dict())
    folder.log("finished")
    return record


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


def make_record(
    space: Workspace,
    folder: RunDirectory,
    method: Method,
    metrics: dict[str, float],
    selected: Selected | None,
) -> Record:
    """Collect what the record holds."""
    config, split = space.config, space.data.split
    stages = list(method.stages())
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
        metrics=metrics,
        selected={"rule": config.eval.selection, "stage": stage, "epoch": epoch},
        config=config.as_dict(),
        sources=dict(space.resolved.sources),
        presets=list(space.resolved.presets),
        protocol=space.protocol.as_dict(),
        fingerprint=space.protocol.fingerprint(),
        backbone=asdict(space.backbone_info),
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
        },
        timings={name: round(seconds, 3) for name, seconds in space.timings.items()},
        peak_memory=space.compute.peak_memory(),
        device=space.compute.describe(),
        versions=versions(),
        plugin={"package": space.plan.method.package, "version": space.plan.method.version},
        warnings=space.warnings,
    )
