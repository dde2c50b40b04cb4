"""`gcdbench compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gcdbench.cli import completion
from gcdbench.cli.environment_options import environment_options, on_ranks
from gcdbench.cli.formats import format_options, print_sheets
from gcdbench.cli.options import Seeds, datasets_option, set_option
from gcdbench.cli.output import err, note, print_words
from gcdbench.errors import ProtocolError, UsageError

if TYPE_CHECKING:
    from gcdbench.analysis.compare import Comparison
    from gcdbench.analysis.select import Selection, Wanted
    from gcdbench.prepare.environment import RunEnvironment


@click.command("compare", short_help="Compare methods on finished runs.")
@click.argument(
    "methods", nargs=-1, required=True, metavar="METHOD[:RECIPE]...", shell_complete=completion.plugins("method")
)
@datasets_option
@click.option("--backbone", help="Only runs on this backbone.")
@click.option("--seed", "seeds", type=Seeds(), help="Only these seeds: 0 or 0,1,2 or 0-4.")
@click.option("--epochs", type=int, help="Only runs with this many epochs.")
@set_option
@click.option("--experiment", help="Only runs with the settings that this experiment's rows share.")
@click.option("--run-missing", is_flag=True, help="First train what is missing, on the same seeds for all methods.")
@click.option("--all-setups", is_flag=True, help="Show every set-up of a method, not only the prescribed one.")
@click.option("--paper", is_flag=True, help="Show published numbers of all methods below ours.")
@environment_options
@format_options("markdown", "latex", "json", "csv")
def compare_command(methods: tuple[str, ...], run_missing: bool, paper: bool, fmt: str | None, **options: Any) -> None:
    """Compare METHODs on finished runs: one table per dataset and backbone.

    The first method is the one the others are compared with. A method stands for its default recipe with the
    settings it prescribes; METHOD:RECIPE, --epochs and --set choose other runs. Exit code 3 if protocols differ.
    """
    experiment, options = options["experiment"], _of_experiment(**options)
    common, all_setups = options["common"], options.pop("all_setups")
    with on_ranks(options) as environment:
        wanted = wanted_of(options)
        found = find_runs(methods, environment, wanted, run_missing=run_missing, all_setups=all_setups, alone=paper)
        if experiment is not None:
            found = [_named_without(selection, common) for selection in found]
        remark = None if experiment is None else f"All runs have the common settings of the experiment {experiment}."
        show(found, options["datasets"], paper, options["backbone"], fmt, remark)


def _of_experiment(experiment: str | None, **options: Any) -> dict[str, Any]:
    """The options with what an experiment file says, where the user says nothing."""
    from gcdbench.analysis.experiment_file import load_experiment

    if experiment is None:
        return {**options, "common": {}}
    found = load_experiment(experiment)
    backbone = options["backbone"] or (found.backbones[0] if len(found.backbones) == 1 else None)
    return {
        **options,
        "datasets": options["datasets"] or found.datasets,
        "backbone": backbone,
        "seeds": options["seeds"] or found.seeds,
        "common": dict(found.common),
    }


def _named_without(selection: Selection, common: Mapping[str, Any]) -> Selection:
    """Set-ups whose names do not repeat what all of them share."""
    setups = (replace(s, chosen=tuple(key for key in s.chosen if key not in common)) for s in selection.setups)
    return replace(selection, setups=tuple(setups))


def wanted_of(options: Mapping[str, Any]) -> Wanted:
    """The conditions that options make on runs."""
    from gcdbench import registry
    from gcdbench.analysis.select import Wanted
    from gcdbench.config.coercion import parse_assignment

    settings = {**(options.get("common") or {}), **dict(parse_assignment(a) for a in options["assignments"])}
    if options["epochs"] is not None:
        settings["train.epochs"] = options["epochs"]
    names = tuple(dict.fromkeys(registry.canonical("dataset", d) for d in options["datasets"]))
    return Wanted(names, options["backbone"], options["seeds"], settings)


def find_runs(
    methods: tuple[str, ...],
    environment: RunEnvironment,
    wanted: Wanted,
    *,
    run_missing: bool = False,
    all_setups: bool = False,
    alone: bool = False,
) -> list[Selection]:
    """The set-ups to compare, trained first where that is asked for."""
    from gcdbench.cli.progress import show_progress
    from gcdbench.config.method_ref import MethodRef
    from gcdbench.experiments.comparison_runs import gather

    refs = list(dict.fromkeys(MethodRef.parse(m) for m in methods))
    with show_progress() as display:
        return gather(refs, wanted, environment, display, run_missing=run_missing, all_setups=all_setups, alone=alone)


def show(
    found: Sequence[Selection],
    datasets: Sequence[str],
    paper: bool,
    backbone: str | None,
    fmt: str | None,
    remark: str | None = None,
) -> None:
    """Print the tables, with a sentence below them; results that do not compare are listed after the others, with exit
    code 3."""
    from gcdbench import registry
    from gcdbench.analysis.compare import compare
    from gcdbench.analysis.compare_table import (
        compare_sheet,
        csv_rows,
        published_csv_rows,
        published_places,
        published_rows,
        published_sheet,
    )
    from gcdbench.analysis.published import published_tables
    from gcdbench.backbone.catalogue import short_name

    tables = published_tables(note) if paper else {}
    comparisons: list[tuple[Comparison, Any]] = []
    refused: list[str] = []
    for selection in found:
        for sentence in (*selection.left_out, *(f"No run of {m} on {selection.dataset}." for m in selection.missing)):
            note(sentence)
        rows = published_rows(tables, selection.dataset, selection.backbone) if paper else None
        try:
            comparisons.append((compare(selection.setups), rows))
        except ProtocolError as fault:
            refused.append(str(fault))
        except UsageError as fault:
            if len(found) == 1:
                raise
            print_words(err(), f"Note: {fault}")
    empty = {registry.canonical("dataset", d) for d in datasets} - {s.dataset for s in found}
    alone = [
        p for p in published_places(tables) if p[0] in empty and (backbone is None or short_name(backbone) == p[1])
    ]
    sheets = [compare_sheet(c, rows) for c, rows in comparisons]
    if remark is not None:
        sheets = [replace(sheet, caption=(*sheet.caption, remark)) for sheet in sheets]
    sheets += [published_sheet(*place, published_rows(tables, *place)) for place in alone]

    def data() -> dict[str, Any]:
        theirs = [{"dataset": d, "backbone": b, "published": _published(tables, d, b)} for d, b in alone]
        return {"comparisons": [_with_published(c, tables, paper) for c, _ in comparisons] + theirs, "refused": refused}

    def lines() -> list[dict[str, Any]]:
        places = [*((c.dataset, c.backbone) for c, _ in comparisons), *alone]
        theirs = [r for place in places for r in published_csv_rows(published_rows(tables, *place), *place)]
        return [line for c, _ in comparisons for line in csv_rows(c)] + theirs

    if sheets or fmt == "json":
        print_sheets(sheets, fmt, data, lines)
    elif not refused:
        raise UsageError(f"There are neither runs nor published numbers for {', '.join(sorted(empty))}.")
    if refused:
        raise ProtocolError("\n".join(refused))


def _with_published(found: Comparison, tables: Any, paper: bool) -> dict[str, Any]:
    more = {"published": _published(tables, found.dataset, found.backbone)} if paper else {}
    return {**found.as_dict(), **more}


def _published(tables: Any, dataset: str, backbone: str) -> list[dict[str, Any]]:
    from gcdbench.analysis.compare_table import published_rows

    return [
        {
            "label": row.label,
            "method": row.method,
            "metrics": dict(row.cells[dataset]),
            "source": table.source,
            "notes": list(row.remarks(dataset)),
        }
        for table, row in published_rows(tables, dataset, backbone)
    ]
