"""Before a run is trained: its lock, its rehearsal, room on the disk, its directory and its stores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from gcdbench.backbone.feature_map import SplitFeatureMap
from gcdbench.errors import DataError, GcdbenchError
from gcdbench.prepare.pca import FILE as PROJECTION
from gcdbench.prepare.pca import begun_with
from gcdbench.prepare.token_stores import make_stores
from gcdbench.records.record import read_record
from gcdbench.runs.expectation import expected, image_seconds, require_room, run_bytes, warn_if_slow
from gcdbench.runs.rehearsal import Rehearsal
from gcdbench.training.isolation import Guard, alive, stop_lane
from gcdbench.training.lane import Lane


def begin(lane: Lane, locks: ExitStack, force: bool, guard: Guard) -> None:
    """Lock the run and make its directory; what cannot be locked or made ends this run alone."""
    ctx, folder = lane.ctx, lane.folder

    def wait(who: str) -> None:
        guard.observer.announce(f"{who[:1].upper()}{who[1:]} works on the run {folder.path}; waiting for it to end.")

    lane.ours = False
    try:
        locks.enter_context(folder.lock(wait))
        lane.ours = True
        if folder.finished and not force:
            lane.take(read_record(folder.record_file))
            return
        folder.open()
        folder.forget_failure()
        folder.log(f"start, device {ctx.compute.describe()}")
    except (OSError, GcdbenchError) as fault:
        guard.observer.dropped(ctx.name, stop_lane(lane, fault))


def check_and_describe(lanes: Sequence[Lane], force: bool, guard: Guard) -> None:
    """Try everything that could fail later; then delete what ``force`` repeats, write what says that these are runs,
    and make their stores."""
    fresh = [lane for lane in lanes if force or not lane.folder.has_checkpoint]
    try:
        seconds = 0.0
        if fresh:
            with suppress(Exception):  # what cannot work says so in the rehearsal
                seconds = image_seconds(fresh[0].ctx)
                warn_if_slow(fresh[0].ctx, seconds, guard.observer)
        rehearsal = Rehearsal()
        sizes = _rehearse(fresh, rehearsal, guard)
        if alive(fresh):
            said = expected([lane.ctx for lane in alive(fresh)], rehearsal.taken, seconds, sum(sizes))
            if said is not None:
                guard.observer.announce(said)
        if lanes:
            require_room(sizes, Path(lanes[0].ctx.environment.runs))
        for lane in alive(lanes):
            with guard.here(lane):
                if force:  # only now that the new run is known to work
                    _delete_earlier_run(lane)
                _describe(lane, force)
        if alive(lanes):
            make_stores(lanes[0].ctx, guard.observer)
    except Exception as fault:  # the disk, the images, memory: what all of them need
        for lane in alive(lanes):
            guard.observer.dropped(lane.ctx.name, stop_lane(lane, fault))


def _rehearse(lanes: Sequence[Lane], rehearsal: Rehearsal, guard: Guard) -> list[int]:
    """Rehearse each run, whose faults are its own; what those that work will take on the disk."""
    sizes: list[int] = []
    for lane in lanes:
        guard.observer.phase(f"checking {lane.ctx.config.method}")
        with guard.here(lane):
            note = rehearsal.of(lane.ctx, lane.folder.path)
            if note is not None:
                lane.saves_within = False
                guard.observer.warn(note)
            sizes.append(run_bytes(lane.ctx))
    return sizes


def _delete_earlier_run(lane: Lane) -> None:
    lane.folder.clear()
    lane.folder.open()
    lane.folder.log("started again from the beginning")


def _describe(lane: Lane, force: bool) -> None:
    """What makes the directory a run: its config, and the images it goes without."""
    ctx, folder = lane.ctx, lane.folder
    config = {**ctx.config.as_dict(), "sources": dict(ctx.resolved.sources), "run_id": ctx.run_id}
    folder.write_config(config)
    folder.remember_root(ctx.environment.root)
    if ctx.data.bad_items():
        folder.write_skipped(ctx.data.bad_items())
    _keep_projection(lane, force)


def _keep_projection(lane: Lane, force: bool) -> None:
    """The run's own PCA is written once: a process that resumes the run must not put another one in its place."""
    backbone, folder = lane.ctx.backbone, lane.folder
    projection = backbone.trunk.projection if isinstance(backbone, SplitFeatureMap) else None
    if projection is None:
        return
    other = begun_with(folder.path, lane.ctx.backbone_info) if folder.has_checkpoint and not force else None
    if other is not None:
        raise DataError(
            f"Another process has begun the run {folder.path} with another PCA while this one was preparing it. "
            "Give the same command again."
        )
    projection.write(folder.path / PROJECTION)
