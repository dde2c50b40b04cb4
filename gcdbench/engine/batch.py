"""Many runs in one go: what is finished is taken, what is unfinished continued, what fails is named and passed over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcdbench.engine.preflight import seconds_per_step
from gcdbench.engine.reporter import Reporter
from gcdbench.engine.request import RunRequest, plan
from gcdbench.engine.run import directory, execute, status, workspaces
from gcdbench.engine.workspace import Cache, Workspace
from gcdbench.errors import GcdbenchError
from gcdbench.results.record import Record


@dataclass(frozen=True)
class Job:
    """One line of a study or comparison: a request with one or more seeds."""

    label: str
    request: RunRequest


@dataclass
class Outcome:
    """What came of a job."""

    job: Job
    records: list[Record] = field(default_factory=list)
    fault: GcdbenchError | None = None


@dataclass(frozen=True)
class Place:
    """Where and with what runs are made."""

    runs: Path
    root: Path
    device: str = "auto"
    workers: int | None = None


def run_jobs(jobs: Sequence[Job], place: Place, reporter: Reporter, train: bool = True) -> list[Outcome]:
    """Run all jobs; one that fails keeps its fault and the others go on. ``train`` False takes finished runs only."""
    cache = Cache()
    outcomes = []
    for number, job in enumerate(jobs, 1):
        if train:
            reporter.announce(f"[{number}/{len(jobs)}] {job.label} on {job.request.dataset}")
        outcome = Outcome(job)
        try:
            for space in workspaces(plan(job.request), place.device, place.root, place.workers, reporter, cache):
                if train or directory(space, place.runs).finished:
                    outcome.records.append(execute(space, place.runs, False, reporter))
        except GcdbenchError as fault:
            outcome.fault = fault
        outcomes.append(outcome)
    return outcomes


@dataclass
class PlannedRun:
    """What would be run, and how long it would train."""

    label: str
    method: str
    recipe: str
    dataset: str
    seed: int
    run_id: str
    status: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


def plan_jobs(
    jobs: Sequence[Job], place: Place, reporter: Reporter
) -> tuple[list[PlannedRun], dict[str, GcdbenchError]]:
    """Every run of the jobs with a time estimate, each run id once; and why jobs cannot run, by what they are."""
    cache = Cache()
    speeds: dict[tuple[Any, ...], float] = {}
    planned: dict[str, PlannedRun] = {}
    faults: dict[str, GcdbenchError] = {}
    for job in jobs:
        try:
            for space in workspaces(plan(job.request), place.device, place.root, place.workers, reporter, cache):
                if space.run_id not in planned:
                    planned[space.run_id] = _planned(job.label, space, place.runs, speeds)
        except GcdbenchError as fault:
            faults[f"{job.label} on {job.request.dataset}"] = fault
    return list(planned.values()), faults


def _planned(label: str, space: Workspace, runs: Path, speeds: dict[tuple[Any, ...], float]) -> PlannedRun:
    config, folder = space.config, directory(space, runs)
    now = status(folder)
    seconds = 0.0
    if now != "finished":
        # Steps of one method on one backbone cost about the same whatever its weights are: measured once.
        key = (config.method, config.recipe, config.dataset, config.backbone, config.train.batch_size, config.views)
        if key not in speeds:
            speeds[key] = seconds_per_step(space)
        epochs = sum(stage.epochs for stage in space.method().stages()) - len(folder.epochs())
        seconds = speeds[key] * space.sampler.steps * max(0, epochs)
    return PlannedRun(
        label, config.method, config.recipe, config.dataset, config.seed, space.run_id, now, round(seconds, 1)
    )
