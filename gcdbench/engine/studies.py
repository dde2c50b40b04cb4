"""Studies: an experiment file becomes jobs, jobs become records, records become the lines of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gcdbench import registry
from gcdbench.config import Layer
from gcdbench.engine.batch import Job, Place, PlannedRun, plan_jobs, run_jobs
from gcdbench.engine.parameters import count_parameters
from gcdbench.engine.reporter import Reporter
from gcdbench.engine.request import DEFAULT_BACKBONE, RunRequest
from gcdbench.errors import GcdbenchError, PluginError
from gcdbench.results.experiment import Experiment, Row
from gcdbench.results.published import published_tables
from gcdbench.results.study import Line, Study, line_of


@dataclass(frozen=True)
class Asked:
    """What a user wants of an experiment; None or empty means: as the file says."""

    datasets: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None
    backbone: str | None = None
    epochs: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def places(self, experiment: Experiment) -> list[str]:
        """Datasets to make the study on."""
        return list(dict.fromkeys(registry.canonical("dataset", d) for d in self.datasets or experiment.datasets))


def installed_rows(experiment: Experiment) -> list[Row]:
    """Rows whose method is installed."""
    names = {plugin.name for plugin in registry.plugins("method")}
    return [row for row in experiment.rows if row.method in names]


def make_studies(
    experiment: Experiment, asked: Asked, place: Place, reporter: Reporter, train: bool = True
) -> tuple[list[Study], list[GcdbenchError]]:
    """Our numbers on every dataset, and what went wrong on the way. ``train`` False takes finished runs only."""
    make = _counted if experiment.kind == "parameters" else _run
    studies, faults = [], []
    for dataset in asked.places(experiment):
        lines, failed = make(experiment, asked, dataset, place, reporter, train)
        studies.append(_study(experiment, dataset, lines, asked.backbone))
        faults += failed
    return studies, faults


def plan_studies(
    experiment: Experiment, asked: Asked, place: Place, reporter: Reporter
) -> tuple[list[PlannedRun], dict[str, GcdbenchError]]:
    """What `make_studies` would run, and why rows cannot run."""
    if experiment.kind == "parameters":
        return [], {}
    rows = installed_rows(experiment)
    jobs = [_job(experiment, row, dataset, asked) for dataset in asked.places(experiment) for row in rows]
    return plan_jobs(jobs, place, reporter)


def _run(
    experiment: Experiment, asked: Asked, dataset: str, place: Place, reporter: Reporter, train: bool
) -> tuple[list[Line], list[GcdbenchError]]:
    rows = installed_rows(experiment)
    jobs = [_job(experiment, row, dataset, asked) for row in rows]
    outcomes = dict(zip((row.key for row in rows), run_jobs(jobs, place, reporter, train), strict=True))
    lines = []
    for row in experiment.rows:
        outcome = outcomes.get(row.key)
        if outcome is None:
            lines.append(line_of(row, experiment.metrics, (), f"{row.method} is not installed."))
        elif outcome.fault is not None:
            lines.append(line_of(row, experiment.metrics, outcome.records, f"Failed: {outcome.fault}"))
        else:
            lines.append(line_of(row, experiment.metrics, outcome.records, None if outcome.records else "Not run yet."))
    return lines, [o.fault for o in outcomes.values() if o.fault is not None]


def _counted(
    experiment: Experiment, asked: Asked, dataset: str, place: Place, reporter: Reporter, train: bool
) -> tuple[list[Line], list[GcdbenchError]]:
    rows = installed_rows(experiment)
    lines = []
    for row in experiment.rows:
        if row not in rows:
            lines.append(Line(row, {}, reason=f"{row.method} is not installed."))
            continue
        counts = count_parameters(_job(experiment, row, dataset, asked).request)
        lines.append(Line(row, {part: {0: float(number)} for part, number in counts.items()}))
    return lines, []


def _job(experiment: Experiment, row: Row, dataset: str, asked: Asked) -> Job:
    request = RunRequest(
        method=row.method,
        dataset=dataset,
        recipe=row.recipe,
        seeds=asked.seeds or experiment.seeds,
        backbone=asked.backbone,
        epochs=asked.epochs,
        settings=asked.settings,
        study=Layer(f"experiment {experiment.name}, row {row.key}", row.settings_on(dataset)),
    )
    return Job(row.label, request)


def _study(experiment: Experiment, dataset: str, lines: Sequence[Line], backbone: str | None) -> Study:
    tables = published_tables()
    if experiment.published is not None and experiment.published not in tables:
        raise PluginError(
            f"{experiment.path}: no installed plugin has published numbers called '{experiment.published}'. "
            f"Known: {', '.join(sorted(tables)) or 'none'}."
        )
    name = backbone or registry.load("dataset", dataset).backbone or DEFAULT_BACKBONE
    table = tables[experiment.published] if experiment.published is not None else None
    return Study(experiment, dataset, name, tuple(lines), table)
