"""Printing: tables and JSON on standard output, everything else on standard error."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from gcdbench.system.files import json_text
from gcdbench.system.parallel.spawn import other_rank

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on standard output and nothing else."
)


def plain(text: str) -> str:
    """Text from data as a terminal may be given it: what would move its cursor, or is no text at all, is spelt out."""
    return "".join(_spelt(c) if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cs") else c for c in text)


def _spelt(character: str) -> str:
    """`\\x1b`; half of a pair of surrogates stands for a byte of a file name."""
    number = ord(character)
    return f"\\x{number - 0xDC00 if 0xDC80 <= number <= 0xDCFF else number:02x}"


class PlainConsole(Console):
    """A console that shows plain text only."""

    def print(self, *objects: Any, **more: Any) -> None:
        """Texts are made plain; everything else brings its own form."""
        super().print(*(plain(o) if isinstance(o, str) else o for o in objects), **more)


def out() -> Console:
    """Console on standard output."""
    return PlainConsole(highlight=False)


def err() -> Console:
    """Console on standard error; of several ranks the first one speaks."""
    return PlainConsole(stderr=True, highlight=False, quiet=other_rank())


def note(text: str) -> None:
    """Something a person should know, on standard error."""
    err().print(f"Note: {text}", markup=False, soft_wrap=True)


def print_json(data: Any) -> None:
    """One JSON document."""
    click.echo(json_text(data, allow_nan=False))


def print_table(title: str | None, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """A table of plain text cells; text from data is never read as markup."""
    from rich.text import Text

    table = Table(title=None if title is None else Text(plain(title)), title_justify="left")
    for column in columns:
        table.add_column(Text(plain(column)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    console = out()
    if not console.is_terminal:
        console.width = max(console.width, 110)
    console.print(table)
