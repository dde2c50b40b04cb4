"""From requests to records: the same for the command line, Python, tables and sweeps."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from torch import Tensor

from gcdbench.backbone.projection import Projection
from gcdbench.errors import GcdbenchError
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.pca import begun_with
from gcdbench.prepare.request import ResolvedRequest, RunRequest, resolve_request
from gcdbench.prepare.run_context import RunContext, prepare_run
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.prepare.token_stores import make_stores
from gcdbench.records.record import Record, read_record
from gcdbench.records.run_directory import RunDirectory
from gcdbench.records.trackers import Trackers
from gcdbench.runs.begin import begin, check_and_describe
from gcdbench.runs.finish import finish_run
from gcdbench.runs.lane_groups import trunk_groups
from gcdbench.runs.rank_sync import NoTrackers, UnwrittenRun, follow, require_same, share_records
from gcdbench.system.interrupts import Interrupts
from gcdbench.system.observer import Observer
from gcdbench.training.isolation import Guard, alive, stop_lane
from gcdbench.training.lane import Lane
from gcdbench.training.loop import Clock, train

SAVED = "What a run has done is saved: the same command without --force resumes from there."
"""Said of an interruption once runs have begun."""


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What came of one run: its record, or why there is none."""

    request: int
    """Which of the requests asked for it, counted from 0."""
    ctx: RunContext | None = None
    """None if the run could not even be prepared."""
    record: Record | None = None
    fault: GcdbenchError | None = None
    earlier: bool = False
    """Whether it was finished before."""


@dataclasses.dataclass(frozen=True)
class ExecuteOptions:
    """How requests are executed."""

    force: bool = False
    """Repeat runs that are finished or unfinished."""
    track: tuple[str, ...] = ()
    """Further trackers by name."""
    keep_going: bool = False
    """A request that cannot be prepared keeps its fault, and the others are executed; else it is raised."""
    accepts: Callable[[int, RunContext], bool] = lambda request, ctx: True
    """Which prepared runs are wanted; what it raises counts as a fault of preparing the request."""


def execute(
    requests: Sequence[RunRequest],
    environment: RunEnvironment,
    observer: Observer,
    options: ExecuteOptions | None = None,
) -> list[RunResult]:
    """Show finished runs, resume unfinished ones, train the rest; runs that see the same batches train in lanes.

    One that fails keeps its fault and the others continue. The results are in the order of requests and seeds; a run
    that two requests ask for is made once.
    """
    options = options or ExecuteOptions()
    force = options.force and not _restarted()
    asked = prepare_requests(requests, SharedResources(environment, observer), options)
    contexts = {result.ctx.run_id: result.ctx for result in asked if result.ctx is not None}
    require_same(list(contexts), environment.ranks)
    results = finished_runs(contexts, environment, force)
    groups = trunk_groups((c for run_id, c in contexts.items() if run_id not in results), environment.lanes)
    for number, group in enumerate(groups, 1):
        if len(groups) > 1 or len(group) > 1:
            observer.announce(_announcement(number, len(groups), group))
        train_group(group, environment, observer, dataclasses.replace(options, force=force), results)
    if not environment.ranks.alone:
        share_records(results, environment.ranks)
    return [r if r.ctx is None else dataclasses.replace(results[r.ctx.run_id], request=r.request) for r in asked]


def prepare_requests(
    requests: Sequence[RunRequest], shared: SharedResources, options: ExecuteOptions | None = None
) -> list[RunResult]:
    """Each run that is asked for, prepared on all ranks."""
    options, ranks = options or ExecuteOptions(), shared.environment.ranks
    if not options.keep_going:
        for request in requests:  # a wrong key or value is reported before any data is opened
            resolve_request(request)
    found: list[RunResult] = []
    for number, request in enumerate(requests):
        try:
            with ranks.agreeing():
                contexts = [
                    ctx
                    for ctx in open_runs(resolve_request(request), shared, options.force)
                    if options.accepts(number, ctx)
                ]
        except GcdbenchError as fault:
            if not options.keep_going:
                raise
            found.append(RunResult(number, fault=fault))
            continue
        found += [RunResult(number, ctx) for ctx in contexts]
    return found


def open_runs(asked: ResolvedRequest, shared: SharedResources, force: bool = False) -> Iterator[RunContext]:
    """One context per seed, sharing data and backbone; ``force``: what earlier runs have left does not matter."""
    for number, resolved in enumerate(asked.runs):
        shared.observer.phase("preparing data and backbone")
        ctx = prepare_run(asked, resolved, shared, quiet=number > 0)
        own = shared.environment.ranks.from_first(partial(_begun_with, ctx, force))
        yield ctx if own is None else prepare_run(asked, resolved, shared, Projection(**own), quiet=True)


def _begun_with(ctx: RunContext, force: bool) -> dict[str, Tensor] | None:
    folder = run_directory(ctx)
    resumes = folder.has_checkpoint and not folder.finished and not force
    own = begun_with(folder.path, ctx.backbone_info) if resumes else None
    return None if own is None else own.fitted


def run_directory(ctx: RunContext) -> RunDirectory:
    """Where a run lives."""
    config = ctx.config
    return RunDirectory(Path(ctx.environment.runs) / config.method / config.dataset / ctx.run_id)


def _restarted() -> bool:
    """Whether torchrun has started this command again: what it has begun, it resumes."""
    return bool(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0))


def finished_runs(contexts: Mapping[str, RunContext], environment: RunEnvironment, force: bool) -> dict[str, RunResult]:
    """Runs that need no training, by id."""
    ranks, results = environment.ranks, {}
    for run_id, ctx in contexts.items():
        folder = run_directory(ctx)
        if not ranks.from_first(lambda folder=folder: folder.finished and not force):  # type: ignore[misc]
            continue
        results[run_id] = RunResult(0, ctx, earlier=True)
        if ranks.first:  # the others get the record with all others
            try:
                results[run_id] = RunResult(0, ctx, read_record(folder.record_file), earlier=True)
            except GcdbenchError as fault:
                results[run_id] = RunResult(0, ctx, fault=fault)
    return results


def _announcement(number: int, count: int, group: Sequence[RunContext]) -> str:
    names = ", ".join(dict.fromkeys(f"{ctx.config.method} ({ctx.config.recipe})" for ctx in group))
    seeds = ", ".join(map(str, sorted({ctx.config.seed for ctx in group})))
    lanes = f", {len(group)} lanes" if len(group) > 1 else ""
    return f"[{number}/{count}] {names} on {group[0].config.dataset}, seed {seeds}{lanes}"


def train_group(
    group: Sequence[RunContext],
    environment: RunEnvironment,
    observer: Observer,
    options: ExecuteOptions,
    results: dict[str, RunResult],
) -> None:
    """Train runs that share a source; a fault of what they share is the fault of each."""
    ranks, lanes = environment.ranks, list[Lane]()
    with ExitStack() as locks, Interrupts() as interrupts:
        guard = Guard(observer, ranks, interrupts)
        try:
            lanes += (_lane(ctx, options.track, observer) for ctx in group)
            if ranks.first:
                # Always in the same order, so that two processes with some runs in common never wait for each other.
                for lane in sorted(lanes, key=lambda lane: lane.ctx.run_id):
                    begin(lane, locks, options.force, guard)
                check_and_describe(alive(lanes), options.force, guard)
            follow(lanes, ranks)
            if alive(lanes) and not ranks.first:
                make_stores(group[0], observer)  # they are there, or this machine has no disk in common with the first
            group[0].compute.start_measuring()
            with guard.stopping():
                train(alive(lanes), guard, Clock(environment.checkpoint_every), finish_run)
        except BaseException as fault:
            for lane in alive(lanes):
                stop_lane(lane, fault)
            if lanes and not isinstance(fault, Exception):  # a signal
                fault.add_note(SAVED)
            raise
        finally:
            group[0].source.release()
            observer.finished()
    results |= {lane.ctx.run_id: RunResult(0, lane.ctx, lane.record, lane.fault) for lane in lanes}


def _lane(ctx: RunContext, track: Sequence[str], observer: Observer) -> Lane:
    folder = run_directory(ctx)
    if ctx.ranks.first:
        return Lane(ctx, folder, Trackers(track, observer.warn))
    return Lane(ctx, UnwrittenRun(folder.path), NoTrackers())


def all_records(results: Sequence[RunResult]) -> list[Record]:
    """The records, each run once, or one error that names every run that failed."""
    once = {r.ctx.run_id if r.ctx is not None else f"request {r.request}": r for r in results}
    failed = [r for r in once.values() if r.fault is not None]
    if not failed:
        return [r.record for r in once.values() if r.record is not None]
    first = failed[0].fault
    assert first is not None
    if len(once) == 1:
        raise first
    listing = "\n".join(f"  {_spoken(r)}: {r.fault}" for r in failed)
    raise type(first)(f"{len(failed)} of {len(once)} runs failed; finished ones are kept.\n{listing}") from first


def _spoken(result: RunResult) -> str:
    if result.ctx is None:
        return f"request {result.request + 1}"
    config = result.ctx.config
    return f"{config.method} ({config.recipe}), seed {config.seed}"
