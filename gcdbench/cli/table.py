"""`gcdbench table`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gcdbench.cli.formats import format_options, print_sheets
from gcdbench.cli.options import (
    Seeds,
    data_root_option,
    datasets_option,
    device_option,
    runs_option,
    set_option,
    workers_option,
)
from gcdbench.cli.output import out, print_json, print_table
from gcdbench.errors import GcdbenchError, ProtocolError, UsageError

if TYPE_CHECKING:
    from gcdbench.engine.batch import Job, PlannedRun
    from gcdbench.results.experiment import Experiment, Row
    from gcdbench.results.study import Study


@click.command("table")
@click.argument("name")
@datasets_option
@click.option("--backbone", help="Backbone; default is the dataset's.")
@click.option("--seed", "seeds", type=Seeds(), help="Seeds: 0 or 0,1,2 or 0-4 (default: the experiment's).")
@click.option("--epochs", type=int, help="Number of epochs of every run.")
@set_option
@runs_option
@data_root_option
@device_option
@workers_option
@click.option("--dry-run", is_flag=True, help="Say what would be run and how long it would take, then stop.")
@format_options("markdown", "latex", "json", "csv")
def table_command(name: str, dry_run: bool, fmt: str | None, **options: Any) -> None:
    """Make a table or study of a paper: NAME is an experiment (`gcdbench list experiments`) or its TOML file.

    Runs what is missing, continues what is unfinished, and prints our numbers beside the published ones. A method
    that is not installed is shown with its published numbers only.
    """
    from gcdbench.results.experiment import load_experiment

    experiment = load_experiment(name)
    if dry_run:
        _dry_run(experiment, fmt, **options)
        return
    studies, faults = make_studies(experiment, **options)
    show_studies(studies, fmt)
    if faults:
        raise type(faults[0])(f"{len(faults)} rows failed; the notes below the table say why.")


def make_studies(
    experiment: Experiment, *, datasets: Sequence[str], runs: Path, train: bool = True, **options: Any
) -> tuple[list[Study], list[GcdbenchError]]:
    """Our numbers on every dataset asked for (or published), and what went wrong on the way."""
    from gcdbench.cli.progress import Display
    from gcdbench.engine.batch import Place, run_jobs
    from gcdbench.results.study import line_of

    faults: list[GcdbenchError] = []
    studies = []
    for dataset in _datasets(experiment, datasets):
        rows = _installed(experiment)
        if experiment.kind == "parameters":
            lines = [_count(row, dataset, row in rows, options["backbone"]) for row in experiment.rows]
            studies.append(_study(experiment, dataset, lines, options["backbone"]))
            continue
        jobs = {row.key: _job(experiment, row, dataset, **_of_job(options)) for row in rows}
        with Display() as display:
            place = Place(runs, _root(options), options["device"], options["workers"])
            made = run_jobs(list(jobs.values()), place, display, display.announce if train else None, train)
        outcomes = dict(zip(jobs, made, strict=True))
        lines = []
        for row in experiment.rows:
            outcome = outcomes.get(row.key)
            if outcome is None:
                lines.append(line_of(row, experiment.metrics, (), f"{row.method} is not installed."))
                continue
            reason = None if outcome.records else "Not run yet."
            reason = reason if outcome.fault is None else f"Failed: {outcome.fault}"
            if outcome.fault is not None:
                faults.append(outcome.fault)
            lines.append(line_of(row, experiment.metrics, outcome.records, reason))
        studies.append(_study(experiment, dataset, lines, options["backbone"]))
    return studies, faults


def show_studies(studies: Sequence[Study], fmt: str | None) -> None:
    """Print the tables; a study whose rows differ by accident is refused with exit code 3."""
    from gcdbench.results.study import check_study, study_csv_rows, study_sheet

    refused: list[str] = []
    good = []
    for study in studies:
        try:
            check_study(study)
            good.append(study)
        except ProtocolError as fault:
            refused.append(str(fault))
    if good:
        print_sheets(
            [study_sheet(s) for s in good],
            fmt,
            lambda: {"studies": [s.as_dict() for s in good]},
            lambda: [line for s in good for line in study_csv_rows(s)],
        )
    if refused:
        raise ProtocolError("\n".join(refused))


def _dry_run(experiment: Experiment, fmt: str | None, *, datasets: Sequence[str], runs: Path, **options: Any) -> None:
    from gcdbench.cli.progress import Display
    from gcdbench.engine.batch import Place, plan_jobs

    if fmt not in (None, "json"):
        raise UsageError(f"--dry-run prints for a person or as --json, not as --{fmt}.")
    rows = _installed(experiment)
    missing = [row.label for row in experiment.rows if row not in rows]
    jobs: list[Job] = []
    if experiment.kind == "runs":
        for dataset in _datasets(experiment, datasets):
            jobs += [_job(experiment, row, dataset, **_of_job(options)) for row in rows]
    with Display() as display:
        place = Place(runs, _root(options), options["device"], options["workers"])
        planned, faults = plan_jobs(jobs, place, display)
    if fmt == "json":
        told = {label: str(fault) for label, fault in faults.items()}
        print_json({"runs": [p.as_dict() for p in planned], "cannot_run": told, "not_installed": missing})
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
            [*key, ", ".join(str(p.seed) for p in runs), _spoken(sum(p.seconds for p in runs))]
            for key, runs in groups.items()
        ]
        columns = ["Row", "Method", "Dataset", "Status", "Seeds", "Training"]
        print_table(f"{experiment.title}: what would be run", columns, rows)
    reasons: dict[str, list[str]] = {}
    for label, fault in faults.items():
        reasons.setdefault(str(fault), []).append(label)
    for reason, labels in reasons.items():
        console.print(f"Cannot run: {'; '.join(labels)}. {reason}", markup=False, soft_wrap=True)
    if missing:
        console.print(f"Not installed, published numbers only: {', '.join(missing)}.", markup=False, soft_wrap=True)
    if experiment.kind == "parameters":
        console.print("Nothing is trained: parameters are counted.", markup=False)
        return
    waiting = [p for p in planned if p.status != "finished"]
    total = _spoken(sum(p.seconds for p in waiting))
    console.print(f"{len(waiting)} of {len(planned)} runs to train, one after another, about {total}.", markup=False)


def _spoken(seconds: float) -> str:
    """`45 s`, `12 min`, `3.4 h`, `2.1 days`."""
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            value = seconds / unit
            return f"{value:.0f} {name}" if unit < 3600 else f"{value:.1f} {name}"
    return f"{seconds / 86_400:.1f} days"


def _datasets(experiment: Experiment, asked: Sequence[str]) -> list[str]:
    from gcdbench import registry

    return list(dict.fromkeys(registry.canonical("dataset", d) for d in asked or experiment.datasets))


def _installed(experiment: Experiment) -> list[Row]:
    from gcdbench import registry

    names = {plugin.name for plugin in registry.plugins("method")}
    return [row for row in experiment.rows if row.method in names]


def _root(options: dict[str, Any]) -> Path:
    from gcdbench.data.locate import data_root

    return data_root(options["data_root"])


def _of_job(options: dict[str, Any]) -> dict[str, Any]:
    return {key: options[key] for key in ("seeds", "backbone", "epochs", "assignments")}


def _job(
    experiment: Experiment,
    row: Row,
    dataset: str,
    *,
    seeds: tuple[int, ...] | None,
    backbone: str | None,
    epochs: int | None,
    assignments: tuple[str, ...],
) -> Job:
    from gcdbench.coercion import parse_assignment
    from gcdbench.config import Layer
    from gcdbench.engine.batch import Job
    from gcdbench.engine.request import RunRequest

    request = RunRequest(
        method=row.method,
        dataset=dataset,
        recipe=row.recipe,
        seeds=seeds or experiment.seeds,
        backbone=backbone,
        epochs=epochs,
        settings=dict(parse_assignment(a) for a in assignments),
        study=Layer(f"experiment {experiment.name}, row {row.key}", row.settings_on(dataset)),
    )
    return Job(row.label, request)


def _count(row: Row, dataset: str, installed: bool, backbone: str | None) -> Any:
    """A line of a study that only counts parameters."""
    from gcdbench.config import Layer
    from gcdbench.engine.parameters import count_parameters
    from gcdbench.engine.request import RunRequest
    from gcdbench.results.study import Line

    if not installed:
        return Line(row, {}, reason=f"{row.method} is not installed.")
    study = Layer("experiment", row.settings_on(dataset))
    counts = count_parameters(RunRequest(row.method, dataset, row.recipe, backbone=backbone, study=study))
    return Line(row, {part: {0: float(number)} for part, number in counts.items()})


def _study(experiment: Experiment, dataset: str, lines: Sequence[Any], backbone: str | None) -> Study:
    from gcdbench import registry
    from gcdbench.engine.request import DEFAULT_BACKBONE
    from gcdbench.errors import PluginError
    from gcdbench.results.published import published_tables
    from gcdbench.results.study import Study

    tables = published_tables()
    if experiment.published is not None and experiment.published not in tables and tables:
        raise PluginError(
            f"{experiment.path}: no installed plugin has published numbers called '{experiment.published}'. "
            f"Known: {', '.join(sorted(tables))}."
        )
    name = backbone or registry.load("dataset", dataset).backbone or DEFAULT_BACKBONE
    table = tables.get(experiment.published) if experiment.published else None
    return Study(experiment, dataset, name, tuple(lines), table)
