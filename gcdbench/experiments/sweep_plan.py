"""From an experiment to jobs: what is finished is left out, what shares trunk passes is packed together."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcdbench.analysis.experiment_file import Experiment
from gcdbench.backbone.catalogue import short_name
from gcdbench.errors import GcdbenchError
from gcdbench.experiments.study_runs import Asked, prepare_studies
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.request import RunRequest, resolve_request
from gcdbench.prepare.run_context import RunContext, build_method
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.records.run_directory import RunDirectory
from gcdbench.runs.execute import open_runs, run_directory
from gcdbench.runs.lane_groups import trunk_groups
from gcdbench.system.observer import Observer
from gcdbench.training.batches import stages_of


@dataclass
class SweepRun:
    """One run of the sweep."""

    label: str
    method: str
    recipe: str
    dataset: str
    backbone: str
    seed: int
    run_id: str
    folder: RunDirectory
    epochs: int
    """Epochs of all stages."""
    request: RunRequest
    status: str
    """As it was when the sweep was planned; `busy` where another process works on it."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("label", "method", "recipe", "dataset", "backbone", "seed", "run_id", "epochs", "status")
        return {**{name: getattr(self, name) for name in names}, "dir": str(self.folder.path)}


@dataclass
class SweepJob:
    """Runs that are trained together by one command."""

    name: str
    runs: list[SweepRun]

    @property
    def finished(self) -> int:
        """How many of its runs have a record."""
        return sum(run.folder.finished for run in self.runs)


@dataclass
class SweepPlan:
    """What a sweep would do."""

    experiment: Experiment
    runs: list[SweepRun]
    jobs: list[SweepJob]
    cannot: dict[str, GcdbenchError] = field(default_factory=dict)
    """Why rows cannot run at all, by what they are."""

    def count(self, state: str) -> int:
        """How many runs were in a state when the sweep was planned."""
        return sum(run.status == state for run in self.runs)


def plan_sweep(
    experiment: Experiment, asked: Asked, environment: RunEnvironment, observer: Observer, retry_failed: bool = False
) -> SweepPlan:
    """Every run of the experiment, and the jobs for those that are not finished.

    Runs that failed are tried again only if that is wished.
    """
    shared = SharedResources(environment, observer)
    found: dict[str, tuple[SweepRun, RunContext]] = {}
    cannot: dict[str, GcdbenchError] = {}
    for study, jobs in prepare_studies(experiment, asked, observer.warn):
        for job in jobs.values():
            try:
                for request in _each_seed(job.request):
                    (ctx,) = open_runs(resolve_request(request), shared)
                    if ctx.run_id not in found:
                        found[ctx.run_id] = (_run(job.label, ctx, request), ctx)
            except GcdbenchError as fault:
                cannot[f"{job.label} on {study.dataset}, {study.backbone}"] = fault
    tried = {"new", "unfinished", *(["failed"] if retry_failed else [])}
    waiting = [ctx for run, ctx in found.values() if run.status in tried]
    groups = trunk_groups(waiting, environment.lanes)
    packed = [SweepJob(_name(n, group), [found[s.run_id][0] for s in group]) for n, group in enumerate(groups, 1)]
    return SweepPlan(experiment, [run for run, _ in found.values()], packed, cannot)


def _each_seed(request: RunRequest) -> list[RunRequest]:
    return [dataclasses.replace(request, seeds=(seed,)) for seed in request.seeds or (0,)]


def _run(label: str, ctx: RunContext, request: RunRequest) -> SweepRun:
    config, folder = ctx.config, run_directory(ctx)
    return SweepRun(
        label=label,
        method=config.method,
        recipe=config.recipe,
        dataset=config.dataset,
        backbone=short_name(config.backbone.name),
        seed=config.seed,
        run_id=ctx.run_id,
        folder=folder,
        epochs=sum(stage.epochs for stage in stages_of(ctx, build_method(ctx))),
        request=request,
        status="busy" if folder.worker and not folder.finished else folder.status,
    )


def _name(number: int, group: Sequence[RunContext]) -> str:
    """Different for other runs: a job of an earlier sweep may still be queued under its own name."""
    config = group[0].config
    mark = hashlib.sha256(" ".join(ctx.run_id for ctx in group).encode()).hexdigest()[:6]
    words = (f"{number:03}", config.dataset, short_name(config.backbone.name), f"seed{config.seed}", mark)
    return re.sub(r"[^A-Za-z0-9-]+", "-", "-".join(words))


def sweep_folder(experiment: Experiment, runs: Path) -> Path:
    """Where the sweep keeps its job files and logs: beside the runs, hidden from everything that looks for runs."""
    return runs / ".sweeps" / experiment.name
