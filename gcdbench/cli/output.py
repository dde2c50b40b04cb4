"""Printing: tables and JSON on standard output, everything else on standard error."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console
from rich.table import Table

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on standard output and nothing else."
)


def out() -> Console:
    """Console on standard output."""
    return Console(highlight=False)


def err() -> Console:
    """Console on standard error."""
    return Console(stderr=True, highlight=False)


def print_json(data: Any) -> None:
    """One JSON document."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(title: str | None, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """A table of plain text cells; text from data is never read as markup."""
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = out()
    if not console.is_terminal:
        console.width = max(console.width, 110)
    console.print(table)
