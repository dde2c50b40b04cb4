"""`gcdbench new-plugin`."""

from __future__ import annotations

from pathlib import Path

import click

from gcdbench.cli.options import PathType
from gcdbench.cli.output import json_option, out, print_json, print_words


@click.command("new-plugin")
@click.argument("name")
@click.option("--kind", default="method", show_default=True, metavar="method|dataset|evaluator|k-estimator")
@click.option("--from", "base", metavar="METHOD", help="Derive the new method from an installed one.")
@click.option(
    "--folder", type=PathType(path_type=Path), help="Where to put the package.  [default: the name of the package]"
)
@json_option
def new_plugin_command(name: str, kind: str, base: str | None, folder: Path | None, as_json: bool) -> None:
    """Write a working plugin package to start from, with a test that passes at once."""
    from gcdbench.testing.scaffold.write import words, write_plugin

    fields = words(name, kind)
    folder = Path(fields["package"]) if folder is None else folder
    files = write_plugin(name, kind, folder, base)
    if as_json:
        print_json({"name": name, "kind": kind, "folder": str(folder), "files": files, **fields})
        return
    console = out()
    print_words(console, f"{folder} holds the {kind} '{name}':")
    for file in files:
        print_words(console, f"  {file}")
    check = f"gcdbench check {name} --kind {kind}" + (" --data-root FOLDER" if kind == "dataset" else "")
    text = f"Next:\n  pip install -e {folder}\n  {check}\n  python -m pytest {folder}"
    print_words(console, text)
