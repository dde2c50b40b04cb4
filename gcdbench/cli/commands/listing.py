"""`gcdbench list`."""

from __future__ import annotations

from typing import Any

import click

from gcdbench.cli.output import json_option, print_json, print_table
from gcdbench.errors import unknown

KINDS = {
    "methods": "method",
    "datasets": "dataset",
    "evaluators": "evaluator",
    "k-estimators": "k-estimator",
    "trackers": "tracker",
    "launchers": "launcher",
}


@click.command("list")
@click.argument("what", metavar="methods|datasets|backbones|evaluators|k-estimators|trackers|launchers|experiments")
@click.option("--no-check", is_flag=True, help="Do not try whether each plugin can be imported (quick).")
@json_option
def list_command(what: str, no_check: bool, as_json: bool) -> None:
    """List what is installed. A plugin that cannot be imported is shown as broken, with the reason."""
    others = {"backbones": _list_backbones, "experiments": _list_experiments}
    if what in others:
        others[what](as_json)
        return
    if what not in KINDS:
        raise unknown("kind of thing to list called", what, [*KINDS, *others])
    from gcdbench import registry

    kind = KINDS[what]
    found = registry.plugins(kind)
    reasons = {} if no_check else registry.probe(found)
    other: dict[str, list[str]] = {}
    for alias, name in sorted(registry.aliases(kind).items()):
        other.setdefault(name, []).append(alias)
    rows: list[dict[str, Any]] = []
    for plugin in found:
        reason = reasons.get(plugin.name) or plugin.clash
        row: dict[str, Any] = {
            "name": plugin.name,
            "package": plugin.package,
            "version": plugin.version,
            "status": "broken" if reason else "unchecked" if no_check else "ok",
            "reason": reason,
        }
        if kind in registry.ALIASES:
            row["aliases"] = other.get(plugin.name, [])
        rows.append(row)
    if as_json:
        print_json({what: rows})
        return
    columns = ["Name", "Package", "Status"] + (["Also called"] if kind in registry.ALIASES else [])
    print_table(None, columns, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> list[str]:
    status = row["status"] if not row["reason"] else f"broken: {row['reason']}"
    cells = [row["name"], f"{row['package']} {row['version']}", status]
    return [*cells, ", ".join(row["aliases"])] if "aliases" in row else cells


def _list_backbones(as_json: bool) -> None:
    from gcdbench.backbone.catalogue import CATALOGUE

    rows = [
        {"name": s.name, "model": s.timm_name or "shipped with gcdbench", "description": s.description}
        for s in CATALOGUE.values()
    ]
    if as_json:
        print_json({"backbones": rows})
        return
    print_table(None, ["Name", "Model", "What"], [list(row.values()) for row in rows])
    click.echo("Any other timm ViT with a CLS token, or network with a feature map, works by its timm name.")


def _list_experiments(as_json: bool) -> None:
    from gcdbench.analysis.experiment_file import experiment_files, parse_experiment

    found = [parse_experiment(path) for path in experiment_files().values()]
    rows: list[dict[str, Any]] = [
        {"name": e.name, "title": e.title, "rows": len(e.rows), "datasets": list(e.datasets), "file": str(e.path)}
        for e in sorted(found, key=lambda e: e.name)
    ]
    if as_json:
        print_json({"experiments": rows})
        return
    table = [[r["name"], r["title"], str(r["rows"]), ", ".join(r["datasets"])] for r in rows]
    print_table(None, ["Name", "What", "Rows", "Published on"], table)
    click.echo("`gcdbench table NAME --dataset digits` makes one of them on the embedded data.")
