"""Runs from request to record; the same for the command line and for Python."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from gcdbench.backbone.feature_map import SplitFeatureMap
from gcdbench.backbone.projection import Projection
from gcdbench.data.data_root import data_root as choose_root
from gcdbench.errors import DataError, GcdbenchError, UsageError
from gcdbench.prepare.pca import FILE as PROJECTION
from gcdbench.prepare.pca import begun_with
from gcdbench.prepare.plan import Plan, RunRequest, plan
from gcdbench.prepare.run_context import Workspace, prepare
from gcdbench.prepare.shared_resources import Cache
from gcdbench.prepare.token_stores import Shelf, make_stores
from gcdbench.records.record import Record, read_record
from gcdbench.records.run_directory import RunDirectory
from gcdbench.records.trackers import Trackers
from gcdbench.runs.disk_space import require_room, run_bytes
from gcdbench.runs.lane_groups import MAX_LANES, trunk_groups
from gcdbench.runs.onlooker import Untracked, Unwritten
from gcdbench.runs.rank_sync import follow, require_same, share_records
from gcdbench.runs.rehearsal import Rehearsal
from gcdbench.system.device import Compute, choose_device
from gcdbench.system.interrupts import Interrupts
from gcdbench.system.observer import Reporter
from gcdbench.system.parallel.communicator import ALONE, Ranks
from gcdbench.system.parallel.join import joined
from gcdbench.training.lane import Runner
from gcdbench.training.loop import CHECKPOINT_EVERY, train_together, try_alone

DEFAULT_RUNS = Path("runs")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where and with what runs are made; none of it changes a result."""

    runs: Path = DEFAULT_RUNS
    root: Path = Path("data")
    device: str = "auto"
    workers: int | None = None
    """Threads that read images."""
    shelf: Shelf = dataclasses.field(default_factory=Shelf.at)
    lanes: int = MAX_LANES
    """Runs that are trained together at most."""
    checkpoint_every: float = CHECKPOINT_EVERY
    """Seconds between checkpoints within an epoch; each epoch ends with one anyway."""
    ranks: Ranks = ALONE
    """The processes that work on each run together."""

    def __post_init__(self) -> None:
        if not self.checkpoint_every >= 0:
            raise UsageError(f"checkpoint_every is {self.checkpoint_every}; it is a number of seconds, at least 0.")
        if self.lanes < 1:
            raise UsageError(f"lanes is {self.lanes}; at least one run must be trained at a time.")


def run(
    method: str | Sequence[str] | None = None,
    dataset: str | None = None,
    *,
    recipe: str | None = None,
    seeds: Sequence[int] | int | None = None,
    backbone: str | None = None,
    epochs: int | None = None,
    k: int | str | None = None,
    label_ratio: float | None = None,
    novel_ratio: float | None = None,
    precision: str | None = None,
    settings: Mapping[str, Any] | None = None,
    config: Path | str | None = None,
    device: str = "auto",
    runs: Path | str = DEFAULT_RUNS,
    data_root: Path | str | None = None,
    workers: int | None = None,
    cache: Path | str | None = None,
    image_store: bool = True,
    lanes: int = MAX_LANES,
    checkpoint_every: float = CHECKPOINT_EVERY,
    on_bad_image: str | None = None,
    force: bool = False,
    track: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> list[Record]:
    """Train and score a method on a dataset, once per seed, and return the records.

    Several methods (`"A,B"` or a list; `A:RECIPE` names a recipe) share trunk passes. Finished runs are
    returned as they are, unfinished ones continued; ``force`` repeats them. Started by `torchrun`, all processes work
    on each run together and get the same records. ``k`` is a number of classes or the name
    of a K estimator. ``settings`` maps `section.key` to values, as `--set` does on the command line; ``track`` names
    trackers (`tensorboard`); ``cache`` is where stores live.
    """
    request = RunRequest(
        method=method if method is None or isinstance(method, str) else ",".join(method),
        dataset=dataset,
        recipe=recipe,
        seeds=(seeds,) if isinstance(seeds, int) else None if seeds is None else tuple(seeds),
        backbone=backbone,
        epochs=epochs,
        k=k,
        label_ratio=label_ratio,
        novel_ratio=novel_ratio,
        precision=precision,
        on_bad_image=on_bad_image,
        settings=dict(settings or {}),
        config=None if config is None else Path(config),
    )
    root = choose_root(None if data_root is None else Path(data_root))
    shelf = Shelf.at(None if cache is None else Path(cache), image_store)
    with joined(device) as ranks:
        place = Place(Path(runs), root, device, workers, shelf, lanes, checkpoint_every, ranks)
        reporter = reporter if reporter is not None and ranks.first else Reporter()
        shared = Cache()
        planned = [plan(one) for one in request.each()]
        spaces = ranks.together(
            lambda: distinct(s for one in planned for s in workspaces(one, place, reporter, shared, force))
        )
        return all_records(execute_all(spaces, place, reporter, force, track))


def workspaces(
    planned: Plan, place: Place, reporter: Reporter, cache: Cache | None = None, force: bool = False
) -> Iterator[Workspace]:
    """One workspace per seed, sharing data and backbone; ``force``: what earlier runs have left does not matter."""
    cache = cache or Cache()
    chosen = choose_device(place.device)
    for number, resolved in enumerate(planned.runs):
        reporter.phase("preparing data and backbone")
        compute = Compute(chosen, resolved.config.train.precision)
        warn = reporter.warn if number == 0 else None
        tick, ranks = reporter.working, place.ranks
        given = (planned, resolved, compute, place.root, place.workers, cache)
        space = prepare(*given, warn, place.shelf, tick, ranks)
        own = ranks.from_first(partial(_begun_with, space, place.runs, force))
        yield space if own is None else prepare(*given, None, place.shelf, tick, ranks, Projection(**own))


def _begun_with(space: Workspace, runs: Path, force: bool) -> dict[str, Tensor] | None:
    folder = directory(space, runs)
    goes_on = folder.has_checkpoint and not folder.finished and not force
    own = begun_with(folder.path, space.backbone_info) if goes_on else None
    return None if own is None else own.fitted


def distinct(spaces: Iterable[Workspace]) -> list[Workspace]:
    """Each run once, though two names may mean the same one (a method, and the method with its default recipe)."""
    return list({space.run_id: space for space in spaces}.values())


def directory(space: Workspace, runs: Path) -> RunDirectory:
    """Where a run lives."""
    return RunDirectory(runs / space.config.method / space.config.dataset / space.run_id)


def status(folder: RunDirectory) -> str:
    """What `execute_all` would do: `finished` is shown, `unfinished` continued, `new` and `failed` are run."""
    if folder.finished:
        return "finished"
    if folder.failure is not None:
        return "failed"
    return "unfinished" if folder.has_checkpoint else "new"


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of one run: its record, or why there is none."""

    space: Workspace
    record: Record | None = None
    fault: GcdbenchError | None = None


def execute_all(
    spaces: Sequence[Workspace], place: Place, reporter: Reporter, force: bool = False, track: Sequence[str] = ()
) -> list[Result]:
    """Show finished runs, continue unfinished ones, train the rest; runs that see the same batches train in lanes.

    One that fails keeps its fault and the others go on. The results are in the order of the workspaces.
    """
    unique = {space.run_id: space for space in spaces}
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0):
        force = False  # what this command has begun, it goes on with
    require_same(list(unique), place.ranks)
    results = finished_runs(unique, place, force)
    groups = trunk_groups((s for run_id, s in unique.items() if run_id not in results), place.lanes)
    for number, group in enumerate(groups, 1):
        if len(groups) > 1 or len(group) > 1:
            reporter.announce(_announcement(number, len(groups), group))
        for result in _train_group(group, place, reporter, force, track):
            results[result.space.run_id] = result
    if not place.ranks.alone:
        share_records(results, place.ranks)
    return [dataclasses.replace(results[space.run_id], space=space) for space in spaces]


def finished_runs(unique: Mapping[str, Workspace], place: Place, force: bool) -> dict[str, Result]:
    """Runs that need no training, by id."""
    results: dict[str, Result] = {}
    for run_id, space in unique.items():
        folder = directory(space, place.runs)
        if not place.ranks.from_first(lambda folder=folder: folder.finished and not force):  # type: ignore[misc]
            continue
        if place.ranks.first:
            try:
                results[run_id] = Result(space, read_record(folder.record_file))
            except GcdbenchError as fault:
                results[run_id] = Result(space, fault=fault)
        else:
            results[run_id] = Result(space)  # the record comes with all others
    return results


def _announcement(number: int, count: int, group: Sequence[Workspace]) -> str:
    names = ", ".join(dict.fromkeys(f"{s.config.method} ({s.config.recipe})" for s in group))
    seeds = ", ".join(map(str, sorted({s.config.seed for s in group})))
    lanes = f", {len(group)} lanes" if len(group) > 1 else ""
    return f"[{number}/{count}] {names} on {group[0].config.dataset}, seed {seeds}{lanes}"


def _train_group(
    group: Sequence[Workspace], place: Place, reporter: Reporter, force: bool, track: Sequence[str]
) -> list[Result]:
    """Train runs that share a source; a fault of what they share is the fault of each."""
    runners: list[Runner] = []
    with ExitStack() as held, Interrupts() as interrupts:
        try:
            runners += (_runner(space, place, reporter, track) for space in group)
            if place.ranks.first:
                # Always in the same order, so that two processes with some runs in common never wait for each other.
                for runner in sorted(runners, key=lambda r: r.space.run_id):
                    _begin(runner, held, force, reporter)
                _check(_alive(runners), place, reporter, force)
            follow(runners, place.ranks)
            if _alive(runners) and not place.ranks.first:
                make_stores(group[0], reporter)  # they are there, or this machine has no disk in common with the first
            group[0].compute.start_measuring()
            train_together(_alive(runners), reporter, place.checkpoint_every, interrupts)
        except BaseException as fault:
            for runner in _alive(runners):
                runner.stop(fault)
            raise
        finally:
            group[0].source.release()
            reporter.finished()
    return [Result(runner.space, runner.record, runner.fault) for runner in runners]


def _runner(space: Workspace, place: Place, reporter: Reporter, track: Sequence[str]) -> Runner:
    folder = directory(space, place.runs)
    if place.ranks.first:
        return Runner(space, folder, Trackers(track, reporter.warn))
    return Runner(space, Unwritten(folder.path), Untracked())


def _alive(runners: Iterable[Runner]) -> list[Runner]:
    return [runner for runner in runners if not runner.over]


def _begin(runner: Runner, held: ExitStack, force: bool, reporter: Reporter) -> None:
    """Lock the run and make its directory; what cannot be locked or made ends this run alone."""
    space, folder = runner.space, runner.folder

    def wait(who: str) -> None:
        reporter.announce(f"{who[:1].upper()}{who[1:]} works on the run {folder.path}; waiting for it to end.")

    runner.begun = False
    try:
        held.enter_context(folder.lock(wait))
        runner.begun = True
        if folder.finished and not force:
            runner.take(read_record(folder.record_file))
            return
        folder.open()
        folder.forget_failure()
        folder.log(f"start, device {space.compute.describe()}")
    except (OSError, GcdbenchError) as fault:
        reporter.dropped(space, runner.stop(fault))


def _check(runners: Sequence[Runner], place: Place, reporter: Reporter, force: bool) -> None:
    """Try everything that could fail later, then write what says that this is a run, and make the stores."""
    fresh = [runner for runner in runners if force or not runner.folder.has_checkpoint]
    sizes = _rehearse(fresh, reporter)
    try:
        require_room(sizes, place.runs)
        for runner in _alive(runners):
            try_alone(runner, partial(_describe, runner, force), reporter)
        if _alive(runners):
            make_stores(runners[0].space, reporter)
    except Exception as fault:  # the disk, the images, memory: what all of them need
        for runner in _alive(runners):
            reporter.dropped(runner.space, runner.stop(fault))


def _rehearse(runners: Sequence[Runner], reporter: Reporter) -> list[int]:
    """Rehearse each run, whose faults are its own; what those that work will take on the disk."""
    rehearsal = Rehearsal()
    sizes: list[int] = []

    def rehearse(runner: Runner) -> None:
        note = rehearsal.of(runner.space, runner.folder.path)
        if note is not None:
            runner.saves_within = False
            reporter.warn(note)
        sizes.append(run_bytes(runner.space))

    for runner in runners:
        reporter.phase(f"checking {runner.space.config.method}")
        try_alone(runner, partial(rehearse, runner), reporter)
    return sizes


def _describe(runner: Runner, force: bool) -> None:
    """What makes the directory a run: its config, and the images it goes without."""
    space, folder = runner.space, runner.folder
    if force:  # only now that the new run is known to work
        folder.clear()
        folder.open()
        folder.log("start anew")
    config = {**space.config.as_dict(), "sources": dict(space.resolved.sources), "run_id": space.run_id}
    folder.write_config(config)
    if space.data.bad_items():
        folder.write_skipped(space.data.bad_items())
    _keep_projection(runner, force)


def _keep_projection(runner: Runner, force: bool) -> None:
    """The run's own PCA is written once: a process that goes on with the run must not put another one in its place."""
    backbone, folder = runner.space.backbone, runner.folder
    projection = backbone.trunk.projection if isinstance(backbone, SplitFeatureMap) else None
    if projection is None:
        return
    other = begun_with(folder.path, runner.space.backbone_info) if folder.has_checkpoint and not force else None
    if other is not None:
        raise DataError(
            f"Another process has begun the run {folder.path} with another PCA while this one was preparing it. "
            "Give the same command again."
        )
    projection.write(folder.path / PROJECTION)


def all_records(results: Sequence[Result]) -> list[Record]:
    """The records, or one error that names every run that failed."""
    failed = {r.space.run_id: r for r in results if r.fault is not None}
    if not failed:
        return [r.record for r in results if r.record is not None]
    first = next(iter(failed.values()))
    assert first.fault is not None
    if len({r.space.run_id for r in results}) == 1:
        raise first.fault
    listing = "\n".join(
        f"  {r.space.config.method} ({r.space.config.recipe}), seed {r.space.config.seed}: {r.fault}"
        for r in failed.values()
    )
    raise type(first.fault)(
        f"{len(failed)} of {len(results)} runs failed; finished ones are kept.\n{listing}"
    ) from first.fault
