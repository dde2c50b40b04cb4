"""`gcdbench table`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gcdbench.cli import completion
from gcdbench.cli.environment_options import environment_options, on_ranks
from gcdbench.cli.formats import format_options, print_sheets
from gcdbench.cli.options import Seeds, datasets_option, set_option
from gcdbench.cli.output import out, print_json, print_table, print_words
from gcdbench.errors import GcdbenchError, ProtocolError, UsageError
from gcdbench.records.summary import spoken_time

if TYPE_CHECKING:
    from gcdbench.analysis.experiment_file import Experiment
    from gcdbench.analysis.study import Study
    from gcdbench.experiments.jobs import PlannedRun
    from gcdbench.experiments.study_runs import Asked
    from gcdbench.prepare.environment import RunEnvironment


@click.command("table", short_help="Make a table or study of a paper.")
@click.argument("name", shell_complete=completion.experiments)
@datasets_option
@click.option("--backbone", help="Backbone; default is the dataset's.")
@click.option("--seed", "seeds", type=Seeds(), help="Seeds: 0 or 0,1,2 or 0-4 (default: the experiment's).")
@click.option("--epochs", type=int, help="Number of epochs of every run.")
@set_option
@environment_options
@click.option("--dry-run", is_flag=True, help="Say what would be run and how long it would take, then stop.")
@click.option("--recorded", is_flag=True, help="Train nothing: only records in --runs, for which no data is needed.")
@format_options("markdown", "latex", "json", "csv")
def table_command(name: str, dry_run: bool, recorded: bool, fmt: str | None, **options: Any) -> None:
    """Make a table or study of a paper: NAME is an experiment (`gcdbench list experiments`) or its TOML file.

    Runs what is missing, resumes what is unfinished, and prints our numbers beside the published ones. A method
    that is not installed is shown with its published numbers only.
    """
    from gcdbench.analysis.experiment_file import load_experiment
    from gcdbench.cli.progress import show_progress
    from gcdbench.experiments.study_runs import make_studies

    experiment = load_experiment(name)
    if dry_run and recorded:
        raise UsageError("--recorded trains nothing, so there is nothing that --dry-run could show.")
    with on_ranks(options, alone=dry_run) as environment:
        asked = asked_for(**options)
        if dry_run:
            _dry_run(experiment, asked, environment, fmt)
            return
        with show_progress() as display:
            studies, faults = make_studies(experiment, asked, environment, display, recorded=recorded)
        show_studies(studies, fmt)
        if faults:
            raise type(faults[0])(f"{len(faults)} rows failed; the notes below the table say why.")


def asked_for(
    *,
    datasets: tuple[str, ...],
    backbone: str | None,
    seeds: tuple[int, ...] | None,
    epochs: int | None,
    assignments: tuple[str, ...],
) -> Asked:
    """What the options mean."""
    from gcdbench.config.coercion import parse_assignment
    from gcdbench.experiments.study_runs import Asked

    settings = dict(parse_assignment(a) for a in assignments)
    return Asked(datasets, seeds, backbone, epochs, settings)


def show_studies(studies: Sequence[Study], fmt: str | None) -> None:
    """Print the tables; a study whose rows differ by accident is refused with exit code 3."""
    from gcdbench.analysis.study import check_study, study_csv_rows, study_sheet

    refused: list[str] = []
    good = []
    for study in studies:
        try:
            check_study(study)
            good.append(study)
        except ProtocolError as fault:
            refused.append(str(fault))
    if good or fmt == "json":
        print_sheets(
            [study_sheet(s) for s in good],
            fmt,
            lambda: {"studies": [s.as_dict() for s in good], "refused": refused},
            lambda: [line for s in good for line in study_csv_rows(s)],
        )
    if refused:
        raise ProtocolError("\n".join(refused))


def _dry_run(experiment: Experiment, asked: Asked, environment: RunEnvironment, fmt: str | None) -> None:
    from gcdbench.cli.progress import show_progress
    from gcdbench.experiments.study_runs import installed_rows, plan_studies

    if fmt not in (None, "json"):
        raise UsageError(f"--dry-run prints for a person or as --json, not as --{fmt}.")
    with show_progress() as display:
        planned, faults = plan_studies(experiment, asked, environment, display)
    missing = [row.label for row in experiment.rows if row not in installed_rows(experiment)]
    if fmt == "json":
        cannot_run = {label: str(fault) for label, fault in faults.items()}
        print_json({"runs": [p.as_dict() for p in planned], "cannot_run": cannot_run, "not_installed": missing})
    else:
        _print_plan(experiment, planned, faults, missing)
    if faults:
        raise type(next(iter(faults.values())))(f"{len(faults)} rows cannot run; the reasons are above.")


def _print_plan(
    experiment: Experiment, planned: Sequence[PlannedRun], faults: dict[str, GcdbenchError], missing: Sequence[str]
) -> None:
    console = out()
    if planned:
        groups: dict[tuple[str, ...], list[PlannedRun]] = {}
        for p in planned:
            groups.setdefault((p.label, f"{p.method} ({p.recipe})", p.dataset, p.status), []).append(p)
        rows = [
            [*key, ", ".join(str(p.seed) for p in runs), spoken_time(sum(p.seconds for p in runs))]
            for key, runs in groups.items()
        ]
        columns = ["Row", "Method", "Dataset", "Status", "Seeds", "Training"]
        print_table(f"{experiment.title}: what would be run", columns, rows)
    reasons: dict[str, list[str]] = {}
    for label, fault in faults.items():
        reasons.setdefault(str(fault), []).append(label)
    for reason, labels in reasons.items():
        print_words(console, f"Cannot run: {'; '.join(labels)}. {reason}")
    if missing:
        print_words(console, f"Not installed, published numbers only: {', '.join(missing)}.")
    if experiment.kind == "parameters":
        console.print("Nothing is trained: parameters are counted.", markup=False)
        return
    waiting = [p for p in planned if p.status != "finished"]
    total = spoken_time(sum(p.seconds for p in waiting))
    most = max((p.lanes for p in waiting), default=1)
    how = f"in up to {most} lanes" if most > 1 else "one after another"
    console.print(f"{len(waiting)} of {len(planned)} runs to train, {how}, about {total}.", markup=False)
