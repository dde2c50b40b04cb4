"""`gcdbench report`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gcdbench.cli import completion
from gcdbench.cli.environment_options import take_environment
from gcdbench.cli.options import (
    PathType,
    Seeds,
    data_root_option,
    datasets_option,
    device_option,
    runs_option,
    set_option,
)
from gcdbench.errors import UsageError

if TYPE_CHECKING:
    from gcdbench.report.page import Page
    from gcdbench.report.view import Source


@click.command("report", short_help="Write an HTML report.")
@click.argument(
    "names", nargs=-1, required=True, metavar="RUN | --compare METHOD... | --table NAME", shell_complete=completion.runs
)
@click.option("--compare", "comparing", is_flag=True, help="Report on a comparison; names are methods.")
@click.option("--table", "tabling", is_flag=True, help="Report on an experiment; the name is the experiment's.")
@click.option(
    "-o", "--output", type=PathType(path_type=Path, dir_okay=False), default=Path("report.html"), show_default=True
)
@click.option("--plots", type=PathType(path_type=Path, file_okay=False), help="Also write plots here, as SVG and PDF.")
@click.option("--no-images", is_flag=True, help="Leave out images and feature maps; needs no data and no weights.")
@datasets_option
@click.option("--backbone", help="With --compare and --table: only this backbone.")
@click.option("--seed", "seeds", type=Seeds(), help="With --compare and --table: only these seeds.")
@click.option("--epochs", type=int, help="With --compare and --table: runs with this many epochs.")
@set_option
@click.option("--all-setups", is_flag=True, help="With --compare: every set-up of a method.")
@click.option("--paper", is_flag=True, help="With --compare: published numbers below ours.")
@runs_option
@data_root_option
@device_option
def report_command(
    names: tuple[str, ...],
    comparing: bool,
    tabling: bool,
    output: Path,
    plots: Path | None,
    no_images: bool,
    **options: Any,
) -> None:
    """Write one self-contained HTML file about a finished run, a comparison or a study.

    RUN is a run's directory, its id or the beginning of its id. Nothing is trained.
    """
    if comparing and tabling:
        raise UsageError("--compare and --table exclude each other.")
    if not comparing and len(names) > 1:
        kind = "--table takes one experiment" if tabling else "A report is about one run, or add --compare"
        raise UsageError(f"{kind}; {len(names)} names were given.")
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as fault:
        raise UsageError(f"Reports need {fault.name}: pip install 'gcdbench[report]'.") from fault
    from gcdbench.cli.output import note
    from gcdbench.cli.progress import Display
    from gcdbench.data.data_root import VARIABLE
    from gcdbench.data.data_root import data_root as choose_root
    from gcdbench.report.page import write
    from gcdbench.report.view import Source

    given = options.pop("data_root")
    root = choose_root(given) if given is not None or os.environ.get(VARIABLE) else None
    source = Source(root, options.pop("device"), not no_images)
    with Display() as display:
        display.phase("reading runs, drawing plots")
        make = _compare_page if comparing else _study_page if tabling else _run_page
        files = write(make(names, source, **options), output, plots)
    click.echo(f"Wrote {files[0]} ({files[0].stat().st_size / 1e6:.1f} MB).")
    for name, reason in source.left_out.items():
        note(f"No pictures and features of {name}: {reason}")
    if plots is not None:
        click.echo(f"Wrote {len(files) - 1} plots to {plots}.")


def _run_page(names: tuple[str, ...], source: Source, *, runs: Path, **_: Any) -> Page:
    from gcdbench.records.find import find_run
    from gcdbench.records.record import read_record
    from gcdbench.report.build import run_page

    folder = find_run(names[0], runs)
    if not (folder / "record.json").is_file():
        raise UsageError(f"The run in {folder} is unfinished; give its `gcdbench run` command again to continue.")
    return run_page(read_record(folder / "record.json"), source)


def _compare_page(names: tuple[str, ...], source: Source, *, paper: bool, **options: Any) -> Page:
    from gcdbench.analysis.compare import compare
    from gcdbench.analysis.compare_table import published_rows
    from gcdbench.analysis.published import published_tables
    from gcdbench.cli.commands.compare import find_runs, wanted_of
    from gcdbench.cli.output import note
    from gcdbench.report.build import compare_page

    options |= {"data_root": source.root, "device": source.device}
    environment, all_setups = take_environment(options), options["all_setups"]
    found = find_runs(names, environment, wanted_of(options), all_setups=all_setups)
    tables = published_tables(note) if paper else {}
    rows = [published_rows(tables, s.dataset, s.backbone) if paper else None for s in found]
    return compare_page([(compare(s.setups), r) for s, r in zip(found, rows, strict=True)], source)


def _study_page(names: tuple[str, ...], source: Source, *, paper: bool, all_setups: bool, **options: Any) -> Page:
    from gcdbench.analysis.experiment_file import load_experiment
    from gcdbench.analysis.study import check_study
    from gcdbench.cli.commands.table import asked_for
    from gcdbench.experiments.study_runs import make_studies
    from gcdbench.report.build import study_page
    from gcdbench.system.observer import Observer

    experiment = load_experiment(names[0])
    options |= {"data_root": source.root, "device": source.device}
    environment, asked = take_environment(options), asked_for(**options)
    studies, _ = make_studies(experiment, asked, environment, Observer(), train=False)
    if experiment.kind == "runs" and not any(line.records for study in studies for line in study.lines):
        raise UsageError(f"No run of '{experiment.name}' is finished yet: run `gcdbench table {names[0]}` first.")
    for study in studies:
        check_study(study)
    return study_page(studies, source)
