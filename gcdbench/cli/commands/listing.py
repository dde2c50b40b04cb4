"""`gcdbench list`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gcdbench.analysis.table import Sheet
from gcdbench.analysis.table import cells as plain_cells
from gcdbench.cli import completion
from gcdbench.cli.formats import print_sheet
from gcdbench.cli.options import data_root_option, wide_option
from gcdbench.cli.output import json_option, next_step, note, out, print_json, print_words
from gcdbench.errors import GcdbenchError, unknown

KINDS = {
    "methods": "method",
    "datasets": "dataset",
    "evaluators": "evaluator",
    "k-estimators": "k-estimator",
    "trackers": "tracker",
    "launchers": "launcher",
}


@click.command("list")
@click.argument(
    "what",
    metavar="methods|datasets|backbones|evaluators|k-estimators|trackers|launchers|experiments",
    shell_complete=completion.kinds,
)
@click.option("--no-check", is_flag=True, help="Do not try whether each plugin can be imported (quick).")
@data_root_option
@wide_option
@json_option
def list_command(what: str, no_check: bool, data_root: Path | None, wide: bool, as_json: bool) -> None:
    """List what is installed. A plugin that cannot be imported is shown as broken, with the reason."""
    others = {"backbones": _list_backbones, "experiments": _list_experiments}
    if what in others:
        others[what](as_json, wide)
        return
    if what not in KINDS:
        raise unknown("kind of thing to list called", what, [*KINDS, *others])
    from gcdbench import registry
    from gcdbench.data.data_root import data_root as choose_root

    kind = KINDS[what]
    found = registry.plugins(kind)
    probed = {} if no_check else registry.probe(found, str(choose_root(data_root)) if kind == "dataset" else None)
    other: dict[str, list[str]] = {}
    for alias, name in sorted(registry.aliases(kind).items()):
        other.setdefault(name, []).append(alias)
    rows: list[dict[str, Any]] = []
    for plugin in found:
        known = probed.get(plugin.name)
        reason = (known.reason if known else None) or plugin.clash
        row: dict[str, Any] = {
            "name": plugin.name,
            "package": plugin.package,
            "version": plugin.version,
            "status": "broken" if reason else "unchecked" if no_check else "ok",
            "reason": reason,
            **(known.facts if known else {}),
        }
        if kind in registry.ALIASES:
            row["aliases"] = other.get(plugin.name, [])
        rows.append(row)
    if as_json:
        print_json({what: rows})
        return
    cells = {"method": _method_cells, "dataset": _dataset_cells}.get(kind, _other_cells)
    lines = [cells(row) for row in rows]
    columns = tuple(dict.fromkeys(name for line in lines for name in line)) or ("Name",)
    sheet = Sheet(what.capitalize(), columns, tuple(plain_cells(*(line.get(c, "") for c in columns)) for line in lines))
    print_sheet(sheet, ("Package", "Also called"), wide)
    for row in rows:
        if row["reason"]:
            print_words(out(), f"{row['name']} is broken: {row['reason']}")
    if not rows:
        print_words(out(), "None is installed. Methods are packages of their own: the README lists them.")
    hints = {"method": "gcdbench run --method M --dataset digits", "dataset": "gcdbench data layout D"}
    if kind in hints:
        next_step(hints[kind])


def _method_cells(row: dict[str, Any]) -> dict[str, str]:
    cells = {"Name": row["name"], "Method": row.get("title", "")}
    cells["Recipes"] = ", ".join(row.get("recipes", ()))
    if "needs_k" in row:
        finds = [r for r in row["recipes"] if r in row["finds_k"]]
        given = "" if len(finds) == len(row["recipes"]) else "given" if row["needs_k"] else "not needed"
        cells["K"] = "; ".join(filter(None, [given, f"found ({', '.join(finds)})" if finds else ""]))
        cells["Answers by"] = row["answers"]
    return {**cells, "Package": f"{row['package']} {row['version']}", **_status(row)}


def _dataset_cells(row: dict[str, Any]) -> dict[str, str]:
    cells = {"Name": row["name"], "Dataset": row.get("title", "")}
    cells["Training rows"] = "" if row.get("train") is None else f"{row['train']:,}"
    cells["Classes"] = "" if row.get("classes") is None else str(row["classes"])
    cells["Here"] = "" if row.get("here") is None else "yes" if row["here"] else "no"
    more = {"Also called": ", ".join(row["aliases"]), "Package": f"{row['package']} {row['version']}"}
    return {**cells, **more, **_status(row)}


def _other_cells(row: dict[str, Any]) -> dict[str, str]:
    return {
        "Name": row["name"],
        "What": row.get("title", ""),
        "Package": f"{row['package']} {row['version']}",
        **_status(row),
    }


def _status(row: dict[str, Any]) -> dict[str, str]:
    """Only where there is something to say."""
    return {} if row["status"] == "ok" else {"Status": row["status"]}


def _list_backbones(as_json: bool, wide: bool) -> None:
    from gcdbench.backbone.catalogue import CATALOGUE

    rows = [
        {"name": s.name, "model": s.timm_name or "shipped with gcdbench", "description": s.description}
        for s in CATALOGUE.values()
    ]
    if as_json:
        print_json({"backbones": rows})
        return
    table = tuple(plain_cells(*row.values()) for row in rows)
    print_sheet(Sheet("Backbones", ("Name", "Model", "What"), table), wide=wide)
    print_words(out(), "Any other timm ViT with a CLS token, or network with a feature map, works by its timm name.")


def _list_experiments(as_json: bool, wide: bool) -> None:
    from gcdbench.analysis.experiment_file import experiment_files, parse_experiment

    found, broken = [], []
    for path in experiment_files().values():
        try:
            found.append(parse_experiment(path))
        except GcdbenchError as fault:  # one file of one plugin is no reason to hide the others
            broken.append(str(fault))
    rows: list[dict[str, Any]] = [
        {"name": e.name, "title": e.title, "rows": len(e.rows), "datasets": list(e.datasets), "file": str(e.path)}
        for e in sorted(found, key=lambda e: e.name)
    ]
    if as_json:
        print_json({"experiments": rows, "broken": broken})
        return
    table = tuple(plain_cells(r["name"], r["title"], str(r["rows"]), ", ".join(r["datasets"])) for r in rows)
    print_sheet(Sheet("Experiments", ("Name", "What", "Rows", "Datasets"), table), wide=wide)
    for reason in broken:
        note(f"Left out: {reason}")
    print_words(out(), "`gcdbench table NAME --dataset digits` makes one of them on the embedded data.")
