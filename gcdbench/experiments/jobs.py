"""Many runs in one go: what is finished is taken, what is unfinished continued, what fails is named and passed over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gcdbench.errors import GcdbenchError
from gcdbench.prepare.plan import RunRequest, plan
from gcdbench.prepare.run_context import Workspace
from gcdbench.prepare.shared_resources import Cache
from gcdbench.records.record import Record
from gcdbench.runs.dry_run import StepTime, step_time
from gcdbench.runs.execute import Place, directory, execute_all, status, workspaces
from gcdbench.runs.lane_groups import stream_key
from gcdbench.system.observer import Reporter
from gcdbench.training.stages import stages_of


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


def run_jobs(jobs: Sequence[Job], place: Place, reporter: Reporter, train: bool = True) -> list[Outcome]:
    """Run all jobs, in lanes where they share batches; one that fails keeps its fault and the others go on.

    ``train`` False takes finished runs only.
    """
    cache = Cache()
    outcomes = [Outcome(job) for job in jobs]
    owned: list[tuple[Outcome, Workspace]] = []
    for outcome in outcomes:
        try:
            request = outcome.job.request
            spaces = place.ranks.together(lambda r=request: list(workspaces(plan(r), place, reporter, cache)))  # type: ignore[misc]
        except GcdbenchError as fault:
            outcome.fault = fault
            continue
        owned += [(outcome, s) for s in spaces if train or directory(s, place.runs).finished]
    results = execute_all([space for _, space in owned], place, reporter)
    for (outcome, _), result in zip(owned, results, strict=True):
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
    jobs: Sequence[Job], place: Place, reporter: Reporter
) -> tuple[list[PlannedRun], dict[str, GcdbenchError]]:
    """Every run of the jobs with a time estimate, each run id once; and why jobs cannot run, by what they are."""
    cache = Cache()
    found: dict[str, tuple[str, Workspace]] = {}
    faults: dict[str, GcdbenchError] = {}
    for job in jobs:
        try:
            for space in workspaces(plan(job.request), place, reporter, cache):
                found.setdefault(space.run_id, (job.label, space))
        except GcdbenchError as fault:
            faults[f"{job.label} on {job.request.dataset}"] = fault
    waiting = [space for _, space in found.values() if not directory(space, place.runs).finished]
    sharing = [stream_key(space) for space in waiting]
    times: dict[tuple[Any, ...], StepTime] = {}
    planned = []
    for label, space in found.values():
        lanes = min(max(1, sharing.count(stream_key(space))), place.lanes)
        try:
            planned.append(_planned(label, space, place, lanes, times))
        except GcdbenchError as fault:
            faults[f"{label} on {space.config.dataset}"] = fault
    return planned, faults


def _planned(
    label: str, space: Workspace, place: Place, lanes: int, times: dict[tuple[Any, ...], StepTime]
) -> PlannedRun:
    config, folder = space.config, directory(space, place.runs)
    now = status(folder)
    seconds = 0.0
    if now != "finished":
        # Steps of one method on one backbone cost about the same whatever its weights are: measured once.
        key = (config.method, config.recipe, config.dataset, config.backbone, config.train.batch_size, config.views)
        if key not in times:
            times[key], _ = step_time(space)
        epochs = sum(stage.epochs for stage in stages_of(space, space.method())) - len(folder.epochs())
        seconds = (times[key].trunk / lanes + times[key].own) * space.sampler.steps * max(0, epochs)
    return PlannedRun(
        label, config.method, config.recipe, config.dataset, config.seed, space.run_id, now, round(seconds, 1), lanes
    )
