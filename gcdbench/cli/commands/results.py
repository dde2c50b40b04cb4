"""`gcdbench results`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import click

from gcdbench.analysis.setups import spell
from gcdbench.analysis.table import Cell, Sheet, cells
from gcdbench.cli.formats import format_options, print_csv, print_sheet
from gcdbench.cli.options import runs_option, wide_option
from gcdbench.cli.output import err, next_step, out, print_json, print_words
from gcdbench.records.record import Record
from gcdbench.records.summary import HEADLINE
from gcdbench.system.files import read_json

COLUMNS = ("Method", "Seed", *HEADLINE.values(), "Run", "Epochs done", "Protocol")


@click.command("results", short_help="List all runs.")
@click.option("--method", help="Only runs of this method.")
@click.option("--dataset", help="Only runs on this dataset.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of record.json and stop.")
@wide_option
@runs_option
@format_options("json", "csv")
def results_command(
    method: str | None, dataset: str | None, schema: bool, wide: bool, runs: Path, fmt: str | None
) -> None:
    """List the runs that exist: finished ones with their accuracies, unfinished ones with how far they are."""
    if schema:
        click.echo((resources.files("gcdbench.records") / "record.schema.json").read_text(encoding="utf-8"), nl=False)
        return
    from gcdbench import registry
    from gcdbench.records.find import read_runs

    if dataset is not None and dataset.lower() in registry.aliases("dataset"):
        dataset = registry.aliases("dataset")[dataset.lower()]
    records, unfinished, faults = read_runs(runs)
    for fault in faults:
        print_words(err(), f"Note: {fault}")
    rows = [_finished(r) for r in records] + [_unfinished(folder) for folder in unfinished]
    rows = [r for r in rows if method in (None, r["method"]) and dataset in (None, r["dataset"])]
    rows.sort(key=lambda r: (r["dataset"], r["method"], r["recipe"], r["backbone"], r["seed"], r["run_id"]))
    if fmt == "json":
        print_json({"runs": [{k: v for k, v in r.items() if k != "done"} for r in rows], "unreadable": faults})
    elif fmt == "csv":
        flat = [
            {
                **{k: v for k, v in row.items() if k not in ("metrics", "chosen", "done")},
                "chosen": "; ".join(f"{k}={json.dumps(v)}" for k, v in row["chosen"].items()),
                **{k if k not in row else f"metric {k}": v for k, v in row["metrics"].items()},
            }
            for row in rows
        ]
        print_csv(flat)
    elif not rows:
        which = " that fit" if records or unfinished else " that can be read" if faults else ""
        click.echo(f"There are no runs{which} in {runs}. Start one with `gcdbench run --method M --dataset D`.")
    else:
        places: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in rows:
            places.setdefault((row["dataset"], row["backbone"]), []).append(row)
        for (where, backbone), here in places.items():
            print_sheet(_sheet(f"{where}, {backbone or 'backbone not known'}", here), ("Protocol",), wide)
        done = sum(row["status"] == "finished" for row in rows)
        out().print(f"{done} finished, {len(rows) - done} unfinished.", markup=False)
        first = next((r for r in rows if r["status"] == "finished"), None)
        if first is not None:
            next_step(f"gcdbench show {first['run_id']}")


def _finished(record: Record) -> dict[str, Any]:
    from gcdbench.config.resolve import flat_config

    flat = flat_config(record.config)
    return {
        "method": record.method,
        "recipe": record.recipe,
        "dataset": record.dataset,
        "backbone": str(record.backbone.get("name")),
        "seed": record.seed,
        "chosen": {key: flat.get(key) for key in record.chosen},
        "run_id": record.run_id,
        "fingerprint": record.fingerprint,
        "status": "finished",
        "done": "all",
        "finished": record.finished,
        "dir": record.dir,
        "metrics": record.metrics,
    }


def _unfinished(folder: Path) -> dict[str, Any]:
    """What config.json and metrics.jsonl say; a damaged one is listed all the same."""
    from gcdbench.records.run_directory import RunDirectory

    row: dict[str, Any] = {
        "method": folder.parents[1].name,
        "recipe": "",
        "dataset": folder.parent.name,
        "backbone": "",
        "seed": -1,
        "chosen": {},
        "run_id": folder.name,
        "fingerprint": "",
        "status": "unfinished",
        "done": "",
        "finished": "",
        "dir": str(folder),
        "metrics": {},
    }
    try:
        config = read_json(folder / "config.json")
        done = len(RunDirectory(folder).epochs())
        row.update(
            recipe=config["run"]["recipe"],
            backbone=config["backbone"]["name"],
            seed=config["run"]["seed"],
            status=f"unfinished: {done} of {config['train']['epochs']} epochs",
            done=f"{done} of {config['train']['epochs']}",
        )
    except (OSError, ValueError, KeyError, TypeError):
        row["status"] = "unfinished: its config.json cannot be read"
        row["done"] = "config.json cannot be read"
    return row


def _sheet(title: str, rows: Sequence[dict[str, Any]]) -> Sheet:
    """Runs of one dataset and backbone; settings that were chosen are notes."""
    notes: dict[str, int] = {}
    lines = []
    for row in rows:
        chosen = ", ".join(f"{key}={spell(value)}" for key, value in row["chosen"].items())
        marks = (notes.setdefault(chosen, len(notes) + 1),) if chosen else ()
        numbers = [f"{row['metrics'][m]:.1f}" if m in row["metrics"] else "-" for m in HEADLINE]
        seed = str(row["seed"]) if row["seed"] >= 0 else "?"
        name = Cell(f"{row['method']} ({row['recipe']})" if row["recipe"] else row["method"], notes=marks)
        lines.append((name, *cells(seed, *numbers, row["run_id"], row["done"], row["fingerprint"][:8])))
    return Sheet(title, COLUMNS, tuple(lines), notes=tuple(notes))
