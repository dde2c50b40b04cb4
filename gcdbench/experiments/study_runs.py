"""Studies: an experiment file becomes jobs, jobs become records, records become the lines of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gcdbench import registry
from gcdbench.analysis.experiment_file import Experiment, Row
from gcdbench.analysis.published import PublishedTable, published_tables
from gcdbench.analysis.select import records_of
from gcdbench.analysis.study import Line, Study, line_of
from gcdbench.backbone.catalogue import short_name
from gcdbench.config.resolve import Layer
from gcdbench.errors import GcdbenchError, PluginError, UsageError
from gcdbench.experiments.jobs import Job, PlannedRun, plan_jobs, run_jobs
from gcdbench.experiments.parameters import count_parameters
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.request import DEFAULT_BACKBONE, RunRequest, resolve_request
from gcdbench.records.find import read_runs
from gcdbench.system.observer import Observer


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

    def each(self, experiment: Experiment) -> list[tuple[str, Asked]]:
        """Datasets and backbones to make the study on, each with what is asked for there."""
        backbones: list[str | None] = [self.backbone]
        if self.backbone is None and experiment.backbones:
            backbones = list(experiment.backbones)
        return [(d, dataclasses.replace(self, backbone=b)) for d in self.places(experiment) for b in backbones]


def prepare_studies(
    experiment: Experiment, asked: Asked, warn: Callable[[str], None]
) -> list[tuple[Study, dict[str, Job]]]:
    """The studies without lines and, by row, the jobs that would make them; every config is resolved once."""
    return [_prepare(experiment, one, dataset, warn) for dataset, one in asked.each(experiment)]


def installed_rows(experiment: Experiment) -> list[Row]:
    """Rows whose method is installed."""
    names = {plugin.name for plugin in registry.plugins("method")}
    return [row for row in experiment.rows if row.method in names]


def make_studies(
    experiment: Experiment,
    asked: Asked,
    environment: RunEnvironment,
    observer: Observer,
    train: bool = True,
    recorded: bool = False,
) -> tuple[list[Study], list[GcdbenchError]]:
    """Our numbers on every dataset, and what went wrong on the way. ``train`` False takes finished runs only.

    ``recorded`` looks at nothing but records: neither data nor weights need to be here, and a run counts if its
    settings are those of the row. Whatever can be known to be wrong before a run is trained is reported before.
    """
    if recorded and experiment.kind == "parameters":
        raise UsageError(f"{experiment.name} counts parameters: there are no records of it.")
    prepared = prepare_studies(experiment, asked, observer.warn)
    make = _counted if experiment.kind == "parameters" else _recorded if recorded else _run
    faults: list[GcdbenchError] = []
    studies = []
    for study, jobs in prepared:
        lines, failed = make(study, jobs, environment, observer, train)
        studies.append(dataclasses.replace(study, lines=tuple(lines)))
        faults += failed
    return studies, faults


def plan_studies(
    experiment: Experiment, asked: Asked, environment: RunEnvironment, observer: Observer
) -> tuple[list[PlannedRun], dict[str, GcdbenchError]]:
    """What `make_studies` would run, and why rows cannot run."""
    prepared = prepare_studies(experiment, asked, observer.warn)
    if experiment.kind == "parameters":
        return [], {}
    return plan_jobs([job for _, jobs in prepared for job in jobs.values()], environment, observer)


def _prepare(
    experiment: Experiment, asked: Asked, dataset: str, warn: Callable[[str], None]
) -> tuple[Study, dict[str, Job]]:
    """The study without lines, and the job of each installed row by its key; every config is resolved once."""
    rows = installed_rows(experiment)
    jobs = {row.key: _job(experiment, row, dataset, asked) for row in rows}
    backbones = {short_name(resolve_request(job.request).runs[0].config.backbone.name) for job in jobs.values()}
    if len(backbones) > 1:
        raise UsageError(
            f"{experiment.path}: the rows use different backbones ({', '.join(sorted(backbones))}), "
            "so they do not stand in one table."
        )
    backbone = next(iter(backbones), asked.backbone or DEFAULT_BACKBONE)
    return Study(experiment, dataset, backbone, (), _published(experiment, warn)), jobs


def _run(
    study: Study, jobs: Mapping[str, Job], environment: RunEnvironment, observer: Observer, train: bool
) -> tuple[list[Line], list[GcdbenchError]]:
    outcomes = dict(zip(jobs, run_jobs(list(jobs.values()), environment, observer, train), strict=True))
    metrics = study.experiment.metrics
    lines = []
    for row in study.experiment.rows:
        outcome = outcomes.get(row.key)
        if outcome is None:
            lines.append(line_of(row, metrics, (), f"{row.method} is not installed."))
        elif outcome.fault is not None:
            lines.append(line_of(row, metrics, outcome.records, f"Failed: {outcome.fault}"))
        else:
            lines.append(line_of(row, metrics, outcome.records, None if outcome.records else "Not run yet."))
    return lines, [o.fault for o in outcomes.values() if o.fault is not None]


def _recorded(
    study: Study, jobs: Mapping[str, Job], environment: RunEnvironment, observer: Observer, train: bool
) -> tuple[list[Line], list[GcdbenchError]]:
    records, _, faults = read_runs(environment.runs)
    for fault in faults:
        observer.warn(fault)
    metrics = study.experiment.metrics
    lines = []
    for row in study.experiment.rows:
        if row.key not in jobs:
            lines.append(line_of(row, metrics, (), f"{row.method} is not installed."))
            continue
        planned = resolve_request(jobs[row.key].request)
        version = planned.method.version
        there = records_of([run.config for run in planned.runs], records, version)
        note = None if there else "There is no record of it."
        if there and there[0].plugin["version"] != version:
            note = f"Made with {there[0].plugin['package']} {there[0].plugin['version']}."
        lines.append(line_of(row, metrics, there, note))
    return lines, []


def _counted(
    study: Study, jobs: Mapping[str, Job], environment: RunEnvironment, observer: Observer, train: bool
) -> tuple[list[Line], list[GcdbenchError]]:
    lines = []
    for row in study.experiment.rows:
        if row.key not in jobs:
            lines.append(Line(row, {}, reason=f"{row.method} is not installed."))
            continue
        counts = count_parameters(jobs[row.key].request, environment.root)
        lines.append(Line(row, {part: {0: float(number)} for part, number in counts.items()}))
    return lines, []


def _job(experiment: Experiment, row: Row, dataset: str, asked: Asked) -> Job:
    own = row.settings_on(dataset)
    given = [*asked.settings, *(["train.epochs"] if asked.epochs is not None else [])]
    clash = next((key for key in given if key in own), None)
    if clash is not None:
        raise UsageError(f"{clash} is what the row '{row.label}' of {experiment.name} prescribes; it cannot be set.")
    request = RunRequest(
        method=row.method,
        dataset=dataset,
        recipe=row.recipe,
        seeds=asked.seeds or experiment.seeds,
        backbone=asked.backbone,
        epochs=asked.epochs,
        settings=asked.settings,
        study=Layer(f"experiment {experiment.name}, row {row.key}", own),
    )
    return Job(row.label, request)


def _published(experiment: Experiment, warn: Callable[[str], None]) -> PublishedTable | None:
    if experiment.published is None:
        return None
    tables = published_tables(warn)
    if experiment.published not in tables:
        raise PluginError(
            f"{experiment.path}: no installed plugin has published numbers called '{experiment.published}'. "
            f"Known: {', '.join(sorted(tables)) or 'none'}."
        )
    return tables[experiment.published]
