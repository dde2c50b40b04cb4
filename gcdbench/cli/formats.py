"""Output formats of commands that print result tables: for a terminal, for papers, for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from rich import box
from rich.table import Table
from rich.text import Text

from gcdbench.analysis.table import Cell, Sheet, latex, markdown, superscript
from gcdbench.cli.output import out, print_json

WIDEST = 200
"""Characters in a line of a table that goes to a file."""
NAMES = 16
"""Characters that the first column keeps before numbers are folded."""

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


def print_sheet(sheet: Sheet) -> None:
    """A table in the terminal, with its notes below."""
    console = out()
    widths = [max(len(line) for text in texts for line in text.split("\n")) for texts in _columns(sheet)]
    if not console.is_terminal:  # a file has no width: nothing is folded that need not be
        console.width = max(console.width, min(sum(widths) + 3 * len(widths) + 1, WIDEST))
    # Numbers stay whole and the names fold, unless the terminal is too narrow even for that.
    roomy = sum(widths[1:]) + 3 * len(widths) + 1 + NAMES <= console.width
    table = Table(title=Text(sheet.title), title_justify="left", box=box.ROUNDED)
    for number, column in enumerate(sheet.columns):
        table.add_column(Text(column), overflow="fold", no_wrap=bool(number) and roomy)
    for number, row in enumerate(sheet.rows):
        if number in sheet.rules:
            table.add_section()
        table.add_row(*(_text(cell) for cell in row))
    console.print(table)
    for number, note in enumerate(sheet.notes, 1):
        console.print(f"{superscript([number])} {note}", markup=False, soft_wrap=True)
    for sentence in sheet.caption:
        console.print(sentence, markup=False, soft_wrap=True)


def _columns(sheet: Sheet) -> list[list[str]]:
    """The texts of each column."""
    rows = [[cell.text + superscript(cell.notes) for cell in row] for row in sheet.rows]
    return [[title, *(row[i] for row in rows)] for i, title in enumerate(sheet.columns)]


def _text(cell: Cell) -> Text:
    return Text(cell.text, style="bold" if cell.bold else "").append(superscript(cell.notes), style="dim")
