"""Runs for a comparison: finds them, trains what is missing, and says what cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gcdbench import registry
from gcdbench.analysis.select import Selection, Wanted, select
from gcdbench.analysis.setups import group
from gcdbench.config.method_ref import MethodRef
from gcdbench.config.resolve import NEUTRAL, flat_config
from gcdbench.errors import GcdbenchError, UsageError, unknown
from gcdbench.experiments.jobs import Job, run_jobs
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.request import RunRequest, resolve_request
from gcdbench.records.find import read_runs
from gcdbench.records.record import Record
from gcdbench.system.observer import Observer

DEFAULT_SEEDS = (0, 1, 2)
"""Seeds of missing runs where neither the user nor a finished run names any."""


def gather(
    asked_methods: Sequence[MethodRef],
    wanted: Wanted,
    environment: RunEnvironment,
    observer: Observer,
    *,
    run_missing: bool = False,
    all_setups: bool = False,
    alone: bool = False,
) -> list[Selection]:
    """The set-ups to compare, one selection per dataset and backbone.

    ``alone`` lets a dataset without any run pass, because its published numbers are shown.
    """
    records, _, faults = read_runs(environment.runs)
    for fault in faults:
        observer.warn(fault)
    _check_names(asked_methods, records)
    if run_missing:
        known = (MethodRef(c.method, c.recipe or default_recipe(c.method)) for c in asked_methods)
        asked_methods = list(dict.fromkeys(known))
        records = _train(asked_methods, wanted, records, environment, observer)
        all_setups = True  # what was just made for these methods is what is meant, however it is set up
    found = select(records, asked_methods, wanted, default_recipe, all_setups)
    _check_complete(asked_methods, wanted, found, records, environment.runs, alone)
    for selection in found:
        if selection.problem is not None:
            observer.warn(selection.problem)
    if wanted.datasets:
        return found
    return [s for s in found if len(s.setups) > 1 or (s.setups and len(asked_methods) == 1)]


def default_recipe(method: str) -> str | None:
    """The method's first recipe; None if it is not installed."""
    if method not in {p.name for p in registry.plugins("method")}:
        return None
    recipes: tuple[str, ...] = registry.load("method", method).recipes
    return recipes[0]


def _train(
    asked_methods: Sequence[MethodRef],
    wanted: Wanted,
    records: Sequence[Record],
    environment: RunEnvironment,
    observer: Observer,
) -> list[Record]:
    """Run every method on the same seeds of each dataset; the records of exactly these runs."""
    if not wanted.datasets:
        raise UsageError("--run-missing needs to know where: give one or more --dataset.")
    jobs = []
    for dataset in wanted.datasets:
        seeds = wanted.seeds or _seeds(asked_methods, wanted, dataset, records)
        for asked in asked_methods:
            request = RunRequest(
                method=asked.method,
                recipe=asked.recipe,
                dataset=dataset,
                seeds=seeds,
                backbone=wanted.backbone,
                settings=wanted.settings,
            )
            jobs.append(Job(str(asked), request))
    for job in jobs:
        resolve_request(job.request)  # a wrong key or value is reported before the first run is trained
    outcomes = run_jobs(jobs, environment, observer)
    failed = [(o.job.label, o.fault) for o in outcomes if o.fault is not None]
    if failed:
        raise _failure(failed)
    return [record for outcome in outcomes for record in outcome.records]


def _seeds(
    asked_methods: Sequence[MethodRef], wanted: Wanted, dataset: str, records: Sequence[Record]
) -> tuple[int, ...]:
    """Seeds that fitting runs of these methods have already; the default ones where that is less than two."""
    asked = {(c.method, c.recipe) for c in asked_methods}
    fits = (r for r in records if r.dataset == dataset and (r.method, r.recipe) in asked and wanted.fits(r))
    there = {r.seed for r in fits if set(r.chosen) <= set(wanted.settings)}
    return tuple(sorted(there if len(there) > 1 else there | set(DEFAULT_SEEDS)))


def _check_names(asked_methods: Sequence[MethodRef], records: Sequence[Record]) -> None:
    known = {p.name for p in registry.plugins("method")} | {r.method for r in records}
    for asked in asked_methods:
        if asked.method not in known:
            raise unknown("method", asked.method, known)


def _failure(faults: Sequence[tuple[str, GcdbenchError]]) -> GcdbenchError:
    """One error for all runs that failed, of the first one's kind."""
    listing = "\n".join(f"  {label}: {fault}" for label, fault in faults)
    return type(faults[0][1])(f"{len(faults)} of the runs failed; the finished ones are kept.\n{listing}")


def _check_complete(
    asked_methods: Sequence[MethodRef],
    wanted: Wanted,
    found: Sequence[Selection],
    records: Sequence[Record],
    runs: Path,
    alone: bool,
) -> None:
    """Say what is missing, what there is instead, and how to get it. ``alone``: published numbers may stand alone."""
    if not wanted.datasets:
        if any(len(s.setups) > 1 for s in found) or (found and len(asked_methods) == 1):
            return
        raise UsageError(
            f"There is no dataset in {runs} with finished runs of at least two of "
            f"{', '.join(map(str, asked_methods))} that fit. `gcdbench results` lists what there is; "
            "--run-missing --dataset D trains what is missing."
        )
    for dataset in wanted.datasets:
        here = [s for s in found if s.dataset == dataset]
        absent = [c for c in asked_methods if all(str(c) in s.missing for s in here)]
        if absent and not (alone and not here):
            raise UsageError(
                f"There is no finished run of {' and '.join(map(str, absent))} on {dataset} in {runs} that fits."
                f"{_instead(absent, wanted, dataset, records)} Train it with `gcdbench run --method {absent[0].method} "
                f"--dataset {dataset}` or add --run-missing."
            )


def _instead(absent: Sequence[MethodRef], wanted: Wanted, dataset: str, records: Sequence[Record]) -> str:
    """Set-ups that exist but do not fit what was asked for."""
    methods = {c.method for c in absent}
    there = [r for r in records if r.dataset == dataset and r.method in methods]
    for record in there:
        known = {**NEUTRAL, **flat_config(record.config)}
        lacks = next((key for key in wanted.settings if key not in known), None)
        if lacks is not None:
            return f" '{record.method}' has no setting {lacks}."
    others = group(there)
    others_found = "; ".join(
        f"{s.name} on {s.backbone}, seeds {', '.join(str(r.seed) for r in s.records)}" for s in others
    )
    return f" There is: {others_found}." if others_found else ""
