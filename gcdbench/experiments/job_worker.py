"""What a job does: its runs, in lanes, on as many ranks as it was given."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from gcdbench.errors import DataError, GcdbenchError
from gcdbench.experiments.job_file import JobFile
from gcdbench.prepare.plan import RunRequest, plan
from gcdbench.prepare.run_context import Workspace
from gcdbench.prepare.shared_resources import Cache
from gcdbench.records.record import Record
from gcdbench.runs.execute import Place, all_records, directory, distinct, execute_all, workspaces
from gcdbench.system.observer import Reporter
from gcdbench.system.parallel.communicator import Ranks


def _opened(request: RunRequest, wanted: str, place: Place, reporter: Reporter, cache: Cache) -> Workspace:
    (space,) = workspaces(plan(request), place, reporter, cache)
    if space.run_id != wanted:
        raise DataError(
            f"Here this is the run {space.run_id}, not {wanted}: this machine sees other data, weights or versions of "
            "plugins than the one that planned the sweep."
        )
    return space


def work(job: JobFile, file: Path, ranks: Ranks, reporter: Reporter) -> list[Record]:
    """The records; what failed is told when everything else is done.

    A run that has failed since the job's file was written is not tried again: the job was then queued again for the
    sake of others.
    """
    place, cache = job.place.open(ranks), Cache()
    spaces: list[Workspace] = []
    faults: list[GcdbenchError] = []
    for request, wanted in zip(job.requests, job.run_ids, strict=True):
        try:
            space = ranks.together(partial(_opened, request, wanted, place, reporter, cache))
        except GcdbenchError as fault:  # this machine lacks something; the other runs may work
            faults.append(fault)
            reporter.warn(str(fault))
            continue
        folder = directory(space, place.runs)
        if ranks.from_first(lambda folder=folder: folder.failed_after(file)):  # type: ignore[misc]
            faults.append(GcdbenchError(f"{request.method}, seed {space.config.seed} has failed: {folder.failure}"))
            continue
        spaces.append(space)
    records = all_records(execute_all(distinct(spaces), place, reporter))
    if faults:
        raise faults[0]
    return records
