"""`gcdbench job`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gcdbench.cli.environment_options import on_ranks
from gcdbench.cli.options import PathType


@click.command("job")
@click.argument("file", type=PathType(path_type=Path, dir_okay=False))
def job_command(file: Path) -> None:
    """Make the runs of one job of a sweep: FILE is what `gcdbench sweep` has written.

    Launchers call this on the machine a job was brought to. Given again, it resumes where it was.
    """
    from gcdbench.cli.progress import show_progress
    from gcdbench.experiments.job_file import JobFile
    from gcdbench.experiments.job_worker import work

    job = JobFile.read(file)
    options: dict[str, Any] = {"gpus": job.environment.gpus, "device": job.environment.device}
    options |= {"runs": Path(job.environment.runs), "data_root": None}
    with on_ranks(options) as environment:
        with show_progress() as display:
            records = work(job, file, environment.ranks, display)
        for record in records:
            click.echo(f"{record.method} ({record.recipe}) on {record.dataset}, seed {record.seed}: {record.dir}")
