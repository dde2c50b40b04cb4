"""Printing: tables and JSON on standard output, everything else on standard error."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.text import Text

from gcdbench.cli.terminal_table import has_width, print_columns
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
    print_words(err(), f"Note: {text}")


def print_json(data: Any) -> None:
    """One JSON document."""
    click.echo(json_text(data, allow_nan=False))


def print_table(title: str | None, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """A table of plain text cells; text from data is never read as markup."""
    console = out()
    if title is not None:
        print_words(console, title)
    texts = [[Text(plain(cell)) for cell in row] for row in rows]
    print_columns(console, [plain(c) for c in columns], texts, style=box.HEAVY_HEAD)


def print_words(console: Console, text: str) -> None:
    """A sentence, broken between words in a terminal and not at all in a file."""
    console.print(text, markup=False, soft_wrap=not has_width(console))


def next_step(text: str) -> None:
    """What to look at next, for a person at a terminal."""
    console = err()
    if console.is_terminal:
        console.print(f"Next: {text}", markup=False, soft_wrap=False, style="dim")
