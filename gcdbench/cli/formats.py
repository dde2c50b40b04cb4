"""Output formats of commands that print result tables: for a terminal, for papers, for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from rich.text import Text

from gcdbench.analysis.table import Cell, Sheet, latex, mark, markdown
from gcdbench.cli.output import out, plain, print_json, print_words
from gcdbench.cli.terminal_table import print_columns

WIDE = 10_000
"""Characters in a line of a table that may be wider than the terminal."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


def format_options(*kinds: str) -> Callable[[_Command], _Command]:
    """`--markdown`, `--latex`, `--json`, `--csv` as one parameter `fmt`; None prints for a terminal."""
    helps = {
        "markdown": "Print Markdown tables.",
        "latex": "Print LaTeX tables (booktabs).",
        "json": "Print one JSON document on standard output and nothing else.",
        "csv": "Print one CSV table on standard output and nothing else.",
    }

    def decorate(command: _Command) -> _Command:
        for kind in reversed(kinds):
            command = click.option(f"--{kind}", "fmt", flag_value=kind, default=None, help=helps[kind])(command)
        return command

    return decorate


def print_sheets(
    sheets: Sequence[Sheet], fmt: str | None, data: Callable[[], Any], lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """Print tables in a format; ``data`` and ``lines`` are asked for only where JSON or CSV is wanted."""
    if fmt == "json":
        print_json(data())
    elif fmt == "csv":
        print_csv(lines())
    elif fmt == "markdown":
        click.echo("\n".join(markdown(sheet) for sheet in sheets), nl=False)
    elif fmt == "latex":
        click.echo("\n".join(latex(sheet) for sheet in sheets), nl=False)
    else:
        for sheet in sheets:
            print_sheet(sheet)


def print_csv(lines: Sequence[dict[str, Any]]) -> None:
    """One table; columns are the keys of all lines in the order in which they first appear."""
    columns = list(dict.fromkeys(key for line in lines for key in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(lines)
    click.echo(text.getvalue(), nl=False)


def print_sheet(sheet: Sheet, spare: Sequence[str] = (), wide: bool = False) -> None:
    """A table in the terminal, with its notes below; ``spare`` columns are left out where there is no room, unless the
    table may be ``wide``."""
    console = out()
    print_words(console, sheet.title)
    if wide:
        console.width = max(console.width, WIDE)
    rows = [[_text(cell) for cell in row] for row in sheet.rows]
    left_out = print_columns(console, sheet.columns, rows, rules=sheet.rules, spare=spare)
    for number, note in enumerate(sheet.notes, 1):
        print_words(console, f"{mark([number])} {note}")
    for sentence in sheet.caption:
        print_words(console, sentence)
    if left_out:
        print_words(console, f"For want of room without {', '.join(left_out)}: --wide shows everything.")


def _text(cell: Cell) -> Text:
    text = Text(plain(cell.text), style="bold" if cell.bold else "")
    return text.append(f" {mark(cell.notes)}", style="dim") if cell.notes else text
