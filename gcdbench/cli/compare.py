"""`gcdbench compare`."""

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
from gcdbench.cli.output import err
from gcdbench.errors import GcdbenchError, ProtocolError, UsageError

if TYPE_CHECKING:
    from gcdbench.results.compare import Comparison
    from gcdbench.results.record import Record
    from gcdbench.results.select import Contestant, Selection

DEFAULT_SEEDS = (0, 1, 2)
"""Seeds of --run-missing where neither --seed nor a finished run names any."""


@click.command("compare")
@click.argument("methods", nargs=-1, required=True, metavar="METHOD[:RECIPE]...")
@datasets_option
@click.option("--backbone", help="Only runs on this backbone.")
@click.option("--seed", "seeds", type=Seeds(), help="Only these seeds: 0 or 0,1,2 or 0-4.")
@click.option("--epochs", type=int, help="Only runs with so many epochs.")
@set_option
@click.option("--run-missing", is_flag=True, help="First train what is missing, on the same seeds for all methods.")
@click.option("--all-setups", is_flag=True, help="Show every set-up of a method, not only the prescribed one.")
@click.option("--paper", is_flag=True, help="Show published numbers of all methods below ours.")
@runs_option
@data_root_option
@device_option
@workers_option
@format_options("markdown", "latex", "json", "csv")
def compare_command(
    methods: tuple[str, ...],
    datasets: tuple[str, ...],
    seeds: tuple[int, ...] | None,
    run_missing: bool,
    all_setups: bool,
    paper: bool,
    runs: Path,
    fmt: str | None,
    **options: Any,
) -> None:
    """Compare METHODs on finished runs: one table per dataset and backbone.

    The first method is the one the others are compared with. A method stands for its default recipe with the
    settings that prescribes; METHOD:RECIPE, --epochs and --set choose other runs. Exit code 3 if protocols differ.
    """
    found = gather(methods, datasets, seeds, run_missing, all_setups, runs, **options)
    show(found, datasets if paper else None, options["backbone"], fmt)


def gather(
    methods: Sequence[str],
    datasets: Sequence[str],
    seeds: tuple[int, ...] | None,
    run_missing: bool,
    all_setups: bool,
    runs: Path,
    *,
    backbone: str | None,
    epochs: int | None,
    assignments: tuple[str, ...],
    data_root: Path | None,
    device: str,
    workers: int | None,
) -> list[Selection]:
    """The set-ups to compare, after training what is missing if asked."""
    from gcdbench import registry
    from gcdbench.coercion import parse_assignment
    from gcdbench.results.find import read_runs
    from gcdbench.results.select import Contestant, Wanted, select

    contestants = list(dict.fromkeys(Contestant.parse(m) for m in methods))
    names = tuple(dict.fromkeys(registry.canonical("dataset", d) for d in datasets))
    settings = dict(parse_assignment(a) for a in assignments)
    wanted = Wanted(names, backbone, seeds, {**settings, **({} if epochs is None else {"train.epochs": epochs})})
    records, _, faults = read_runs(runs)
    for fault in faults:
        err().print(f"Note: {fault}", markup=False, soft_wrap=True)
    if run_missing:
        contestants = [Contestant(c.method, c.recipe or _default_recipe(c.method)) for c in contestants]
        records = _train(contestants, wanted, records, runs, data_root, device, workers)
        all_setups = True  # what was just made for these methods is what is meant, however it is set up
    found = select(records, contestants, wanted, _default_recipe, all_setups)
    _check_complete(contestants, wanted, found, runs)
    if not names:
        found = [s for s in found if len(s.setups) > 1 or len(contestants) == 1]
    return found


def _default_recipe(method: str) -> str | None:
    """The method's first recipe; None if it is not installed."""
    from gcdbench import registry

    if method not in {p.name for p in registry.plugins("method")}:
        return None
    recipes: tuple[str, ...] = registry.load("method", method).recipes
    return recipes[0]


def _train(
    contestants: Sequence[Contestant],
    wanted: Any,
    records: Sequence[Record],
    runs: Path,
    data_root: Path | None,
    device: str,
    workers: int | None,
) -> list[Record]:
    """Run every method on the same seeds of each dataset; the records of exactly these runs."""
    from gcdbench.cli.progress import Display
    from gcdbench.data.locate import data_root as choose_root
    from gcdbench.engine.batch import Job, Place, run_jobs
    from gcdbench.engine.request import RunRequest

    if not wanted.datasets:
        raise UsageError("--run-missing needs to know where: give one or more --dataset.")
    jobs = []
    for dataset in wanted.datasets:
        there = {r.seed for r in records if r.dataset == dataset and any(c.method == r.method for c in contestants)}
        seeds = wanted.seeds or tuple(sorted(there)) or DEFAULT_SEEDS
        for contestant in contestants:
            request = RunRequest(
                method=contestant.method,
                recipe=contestant.recipe,
                dataset=dataset,
                seeds=seeds,
                backbone=wanted.backbone,
                settings=wanted.settings,
            )
            jobs.append(Job(str(contestant), request))
    with Display() as display:
        place = Place(runs, choose_root(data_root), device, workers)
        outcomes = run_jobs(jobs, place, display, display.announce)
    faults = [o for o in outcomes if o.fault is not None]
    if faults:
        raise _failure([(o.job.label, o.fault) for o in faults if o.fault is not None])
    return [record for outcome in outcomes for record in outcome.records]


def _failure(faults: Sequence[tuple[str, GcdbenchError]]) -> GcdbenchError:
    """One error for all runs that failed, of the first one's kind."""
    listing = "\n".join(f"  {label}: {fault}" for label, fault in faults)
    return type(faults[0][1])(f"{len(faults)} of the runs failed; the finished ones are kept.\n{listing}")


def _check_complete(contestants: Sequence[Contestant], wanted: Any, found: Sequence[Selection], runs: Path) -> None:
    """Say what is missing, and how to get it."""
    if not wanted.datasets:
        if not any(len(s.setups) > 1 for s in found) and len(contestants) > 1:
            raise UsageError(
                f"There is no dataset in {runs} with finished runs of at least two of "
                f"{', '.join(map(str, contestants))} that fit. `gcdbench results` lists what there is; "
                "--run-missing --dataset D trains what is missing."
            )
        return
    for dataset in wanted.datasets:
        here = [s for s in found if s.dataset == dataset]
        absent = [str(c) for c in contestants if all(str(c) in s.missing for s in here)]
        if absent:
            raise UsageError(
                f"There is no finished run of {' and '.join(absent)} on {dataset} in {runs} that fits. "
                f"Train it with `gcdbench run --method {absent[0].partition(':')[0]} --dataset {dataset}` "
                "or add --run-missing."
            )


def show(found: Sequence[Selection], paper: Sequence[str] | None, backbone: str | None, fmt: str | None) -> None:
    """Print the tables; results that do not compare are told after the others, with exit code 3."""
    from gcdbench.results.compare import compare
    from gcdbench.results.compare_sheet import compare_sheet, csv_rows, published_csv_rows, published_rows
    from gcdbench.results.published import published_tables

    tables = published_tables() if paper is not None else {}
    comparisons: list[tuple[Comparison, Any]] = []
    refused: list[str] = []
    for selection in found:
        for sentence in (*selection.left_out, *(f"No run of {m} on {selection.dataset}." for m in selection.missing)):
            err().print(f"Note: {sentence}", markup=False, soft_wrap=True)
        rows = published_rows(tables, selection.dataset, selection.backbone) if paper is not None else None
        try:
            comparisons.append((compare(selection.setups), rows))
        except ProtocolError as fault:
            refused.append(str(fault))

    def data() -> dict[str, Any]:
        return {"comparisons": [_with_published(c, rows) for c, rows in comparisons], "refused": refused}

    def lines() -> list[dict[str, Any]]:
        ours = [line for c, _ in comparisons for line in csv_rows(c)]
        theirs = [r for c, rows in comparisons for r in published_csv_rows(rows or [], c.dataset, c.backbone)]
        return ours + theirs

    if comparisons or fmt == "json":
        print_sheets([compare_sheet(c, rows) for c, rows in comparisons], fmt, data, lines)
    if refused:
        raise ProtocolError("\n".join(refused))


def _with_published(found: Comparison, rows: Any) -> dict[str, Any]:
    data = found.as_dict()
    if rows is not None:
        data["published"] = [
            {
                "label": row.label,
                "method": row.method,
                "metrics": dict(row.cells[found.dataset]),
                "source": table.source,
                "notes": list(row.remarks(found.dataset)),
            }
            for table, row in rows
        ]
    return data
