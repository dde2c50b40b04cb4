"""`gcdbench results`."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import click

from gcdbench.analysis.setups import spell
from gcdbench.analysis.table import Sheet, cells
from gcdbench.cli.formats import format_options, print_csv, print_sheet
from gcdbench.cli.options import runs_option
from gcdbench.cli.output import err, out, print_json
from gcdbench.records.record import Record
from gcdbench.records.summary import HEADLINE
from gcdbench.system.files import read_json


@click.command("results", short_help="List all runs.")
@click.option("--method", help="Only runs of this method.")
@click.option("--dataset", help="Only runs on this dataset.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of record.json and stop.")
@runs_option
@format_options("json", "csv")
def results_command(method: str | None, dataset: str | None, schema: bool, runs: Path, fmt: str | None) -> None:
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
        err().print(f"Note: {fault}", markup=False, soft_wrap=True)
    rows = [_finished(r) for r in records] + [_unfinished(folder) for folder in unfinished]
    rows = [r for r in rows if method in (None, r["method"]) and dataset in (None, r["dataset"])]
    rows.sort(key=lambda r: (r["dataset"], r["method"], r["recipe"], r["backbone"], r["seed"], r["run_id"]))
    if fmt == "json":
        print_json({"runs": rows, "unreadable": faults})
    elif fmt == "csv":
        flat = [
            {
                **{k: v for k, v in row.items() if k not in ("metrics", "chosen")},
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
        columns = ("Method", "Dataset", "Backbone", "Seed", *HEADLINE.values(), "Run", "Protocol", "Status")
        print_sheet(Sheet(f"Runs in {runs}", columns, tuple(cells(*_cells(row)) for row in rows)))
        done = sum(row["status"] == "finished" for row in rows)
        out().print(f"{done} finished, {len(rows) - done} unfinished.", markup=False)


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
        "finished": "",
        "dir": str(folder),
        "metrics": {},
    }
    try:
        config = read_json(folder / "config.json")
        row.update(
            recipe=config["run"]["recipe"],
            backbone=config["backbone"]["name"],
            seed=config["run"]["seed"],
            status=f"unfinished: {len(RunDirectory(folder).epochs())} of {config['train']['epochs']} epochs",
        )
    except (OSError, ValueError, KeyError, TypeError):
        row["status"] = "unfinished: its config.json cannot be read"
    return row


def _cells(row: dict[str, Any]) -> list[str]:
    chosen = "".join(f"\n  {key}={spell(value)}" for key, value in row["chosen"].items())
    numbers = [f"{row['metrics'][m]:.1f}" if m in row["metrics"] else "-" for m in HEADLINE]
    name = f"{row['method']} ({row['recipe']}){chosen}"
    return [
        name,
        row["dataset"],
        row["backbone"],
        str(row["seed"]),
        *numbers,
        row["run_id"],
        row["fingerprint"][:8],
        row["status"],
    ]
