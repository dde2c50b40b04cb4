"""Many runs in one go: what is finished is taken, what is unfinished continued, what fails is named and passed over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gcdbench.errors import GcdbenchError
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.request import RunRequest, resolve_request
from gcdbench.prepare.run_context import RunContext
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.records.record import Record
from gcdbench.runs.dry_run import StepTime, step_time
from gcdbench.runs.execute import ExecuteOptions, execute, open_runs, run_directory
from gcdbench.runs.lane_groups import stream_key
from gcdbench.system.observer import Observer


@dataclass(frozen=True)
class Job:
    """One line of a study or comparison: a request with one or more seeds."""

    label: str
    request: RunRequest


@dataclass
class JobOutcome:
    """What came of a job."""

    job: Job
    records: list[Record] = field(default_factory=list)
    fault: GcdbenchError | None = None


def run_jobs(
    jobs: Sequence[Job], environment: RunEnvironment, observer: Observer, train: bool = True
) -> list[JobOutcome]:
    """Run all jobs, in lanes where they share batches; one that fails keeps its fault and the others continue.

    ``train`` False takes finished runs only.
    """
    accepts = (lambda number, ctx: True) if train else (lambda number, ctx: run_directory(ctx).finished)
    how = ExecuteOptions(keep_going=True, accepts=accepts)
    outcomes = [JobOutcome(job) for job in jobs]
    for result in execute([job.request for job in jobs], environment, observer, how):
        outcome = outcomes[result.request]
        if result.record is not None:
            outcome.records.append(result.record)
        outcome.fault = outcome.fault or result.fault
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
    """Its share of the trunk passes and its own steps."""
    lanes: int
    """Runs that would share its trunk passes, itself included."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


def plan_jobs(
    jobs: Sequence[Job], environment: RunEnvironment, observer: Observer
) -> tuple[list[PlannedRun], dict[str, GcdbenchError]]:
    """Every run of the jobs with a time estimate, each run id once; and why jobs cannot run, by what they are."""
    shared = SharedResources(environment, observer)
    found: dict[str, tuple[str, RunContext]] = {}
    faults: dict[str, GcdbenchError] = {}
    for job in jobs:
        try:
            for ctx in open_runs(resolve_request(job.request), shared):
                found.setdefault(ctx.run_id, (job.label, ctx))
        except GcdbenchError as fault:
            faults[f"{job.label} on {job.request.dataset}"] = fault
    waiting = [ctx for _, ctx in found.values() if not run_directory(ctx).finished]
    sharing = [stream_key(ctx) for ctx in waiting]
    times: dict[tuple[Any, ...], StepTime] = {}
    planned = []
    for label, ctx in found.values():
        lanes = min(max(1, sharing.count(stream_key(ctx))), environment.lanes)
        try:
            planned.append(_planned(label, ctx, lanes, times))
        except GcdbenchError as fault:
            faults[f"{label} on {ctx.config.dataset}"] = fault
    return planned, faults


def _planned(label: str, ctx: RunContext, lanes: int, times: dict[tuple[Any, ...], StepTime]) -> PlannedRun:
    config, folder = ctx.config, run_directory(ctx)
    now = folder.status
    seconds = 0.0
    if now != "finished":
        # Steps of one method on one backbone cost about the same whatever its weights are: measured once.
        key = (
            config.method,
            config.recipe,
            config.dataset,
            config.backbone,
            config.train.batch_size,
            config.views,
            config.store,
        )
        if key not in times:
            times[key], _ = step_time(ctx)
        seconds = times[key].training(ctx, lanes, len(folder.epochs()))
    return PlannedRun(
        label, config.method, config.recipe, config.dataset, config.seed, ctx.run_id, now, round(seconds, 1), lanes
    )
