"""One run from request to record; the same for the command line and for Python."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gcdbench.data.locate import data_root as choose_root
from gcdbench.engine.device import Compute, choose_device
from gcdbench.engine.loop import train
from gcdbench.engine.recording import make_record, write_names
from gcdbench.engine.reporter import Reporter
from gcdbench.engine.request import Plan, RunRequest, plan
from gcdbench.engine.scoring import predict, score
from gcdbench.engine.trackers import Trackers
from gcdbench.engine.workspace import Cache, Workspace, prepare
from gcdbench.files import write_json
from gcdbench.results.record import Record, read_record
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
    track: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> list[Record]:
    """Train and score a method on a dataset, once per seed, and return the records.

    Finished runs are returned as they are, unfinished ones continued; ``force`` repeats them. ``settings`` maps
    `section.key` to values, as `--set` does on the command line; ``track`` names trackers (`tensorboard`).
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
    return [execute(space, Path(runs), force, reporter, track) for space in spaces]


def workspaces(
    planned: Plan, device: str, root: Path, workers: int | None, reporter: Reporter, cache: Cache | None = None
) -> Iterator[Workspace]:
    """One workspace per seed, sharing data and backbone."""
    cache = cache or Cache()
    chosen = choose_device(device)
    for number, resolved in enumerate(planned.runs):
        reporter.phase("preparing data and backbone")
        compute = Compute(chosen, resolved.config.train.precision)
        warn = reporter.warn if number == 0 else None
        yield prepare(planned, resolved, compute, root, workers, cache, warn)


def directory(space: Workspace, runs: Path) -> RunDirectory:
    """Where a run lives."""
    return RunDirectory(runs / space.config.method / space.config.dataset / space.run_id)


def status(folder: RunDirectory) -> str:
    """What `execute` would do."""
    if folder.finished:
        return "finished"
    return "unfinished" if folder.epochs() else "new"


def execute(space: Workspace, runs: Path, force: bool, reporter: Reporter, track: Sequence[str] = ()) -> Record:
    """Show a finished run, continue an unfinished one, or train from the start."""
    folder = directory(space, runs)
    trackers = Trackers(track, reporter.warn)
    if force:
        folder.clear()
    if folder.finished:
        return read_record(folder.record_file)
    folder.open({**space.config.as_dict(), "sources": dict(space.resolved.sources), "run_id": space.run_id})
    folder.log(f"start, device {space.compute.describe()}")
    space.compute.start_measuring()
    try:
        return _execute(space, folder, reporter, trackers)
    except BaseException as fault:
        folder.log(f"stopped: {type(fault).__name__}: {fault}\n{traceback.format_exc()}")
        raise
    finally:
        trackers.close()
        reporter.finished()


def _execute(space: Workspace, folder: RunDirectory, reporter: Reporter, trackers: Trackers) -> Record:
    method, selected = train(space, folder, reporter, trackers)
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
    scores = score(space, prediction, rows)
    space.timings["evaluate"] = time.monotonic() - started
    record = make_record(space, folder, method, scores, selected)
    write_json(folder.record_file, record.as_dict())
    folder.log("finished")
    trackers.finish(record.as_dict())
    return record
