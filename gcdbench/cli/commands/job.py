"""`gcdbench job`."""

from __future__ import annotations

from pathlib import Path

import click

from gcdbench.cli.environment_options import on_ranks
from gcdbench.cli.options import PathType


@click.command("job")
@click.argument("file", type=PathType(path_type=Path, dir_okay=False))
def job_command(file: Path) -> None:
    """Make the runs of one job of a sweep: FILE is what `gcdbench sweep` has written.

    Launchers call this on the machine a job was brought to. Given again, it goes on where it was.
    """
    from gcdbench.experiments.job_file import JobFile

    job = JobFile.read(file)

    def work_on_it() -> None:
        from gcdbench.cli.progress import show_progress
        from gcdbench.experiments.job_worker import work
        from gcdbench.system.parallel.join import current

        with show_progress() as display:
            records = work(job, file, current(), display)
        for record in records:
            click.echo(f"{record.method} ({record.recipe}) on {record.dataset}, seed {record.seed}: {record.dir}")

    on_ranks(job.place.gpus, job.place.device, work_on_it)
