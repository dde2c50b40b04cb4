"""What a job does: its runs, in lanes, on as many ranks as it was given."""

from __future__ import annotations

from gcdbench.engine.reporter import Reporter
from gcdbench.engine.request import plan
from gcdbench.engine.run import all_records, distinct, execute_all, workspaces
from gcdbench.engine.workspace import Cache, Workspace
from gcdbench.errors import GcdbenchError
from gcdbench.ranks.group import Ranks
from gcdbench.results.record import Record
from gcdbench.sweep.jobfile import JobFile


def work(job: JobFile, ranks: Ranks, reporter: Reporter) -> list[Record]:
    """The records; what failed is told when everything else is done."""
    place, cache = job.place.open(ranks), Cache()
    spaces: list[Workspace] = []
    fault: GcdbenchError | None = None
    for request in job.requests:
        try:
            spaces += workspaces(plan(request), place, reporter, cache)
        except GcdbenchError as found:  # this machine lacks something; the other runs may work
            fault = fault or found
            reporter.warn(str(found))
    records = all_records(execute_all(distinct(spaces), place, reporter))
    if fault is not None:
        raise fault
    return records
