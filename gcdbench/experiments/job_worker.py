"""What a job does: its runs, in lanes, on as many ranks as it was given."""

from __future__ import annotations

from pathlib import Path

from gcdbench.errors import DataError, GcdbenchError
from gcdbench.experiments.job_file import JobFile
from gcdbench.prepare.run_context import RunContext
from gcdbench.records.record import Record
from gcdbench.runs.execute import ExecuteOptions, all_records, execute, run_directory
from gcdbench.system.observer import Observer
from gcdbench.system.parallel.communicator import Communicator


def work(job: JobFile, file: Path, ranks: Communicator, observer: Observer) -> list[Record]:
    """The records; what failed is reported when everything else is done.

    A run that has failed since the job's file was written is not tried again: the job was then queued again for the
    sake of others.
    """

    def accepts(number: int, ctx: RunContext) -> bool:
        wanted, folder = job.run_ids[number], run_directory(ctx)
        if ctx.run_id != wanted:
            raise DataError(
                f"Here this is the run {ctx.run_id}, not {wanted}: this machine sees other data, weights or versions "
                "of plugins than the one that planned the sweep."
            )
        if ranks.from_first(lambda: folder.failed_after(file)):
            raise GcdbenchError(f"{ctx.config.method}, seed {ctx.config.seed} has failed: {folder.failure}")
        return True

    how = ExecuteOptions(keep_going=True, accepts=accepts)
    results = execute(job.requests, job.environment.open(ranks), observer, how)
    unprepared = [r.fault for r in results if r.ctx is None and r.fault is not None]
    for fault in unprepared:  # this machine lacks something; the other runs may have worked
        observer.warn(str(fault))
    records = all_records([r for r in results if r.ctx is not None])
    if unprepared:
        raise unprepared[0]
    return records
