"""Tables in a terminal: as wide as it is, with no number, id or word broken where there is any way around it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDEST = 200
"""Characters in a line of a table that goes to a file."""
NAME = 16
"""Characters that the first column keeps before columns go to a table of their own."""
FRAME = 3
"""Characters that a column takes besides its text; a table takes one more."""


def print_columns(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[Text]],
    *,
    rules: Sequence[int] = (),
    spare: Sequence[str] = (),
    style: box.Box = box.ROUNDED,
) -> list[str]:
    """Print a table that fits the console's width; the columns that were left out of it.

    Where there is no room, ``spare`` columns are left out, the first of them first; then names fold; then the table is
    continued in a second one below, whose rows begin with the same names. ``rules`` are rows above which a line is
    drawn.
    """
    texts = [[column, *(row[i].plain for row in rows)] for i, column in enumerate(columns)]
    full = [max(map(_longest_line, cells)) for cells in texts]
    least = [max(map(_longest_word, cells)) for cells in texts]
    room = console.width = table_width(console, sum(full) + FRAME * len(full) + 1)
    kept = list(range(len(columns)))
    for name in spare:
        if _taken(least, kept) > room and name in columns:
            kept.remove(columns.index(name))
    if _taken(least, kept) > room:  # only then are long names broken
        least[0] = min(least[0], NAME)
    for part in _parts(least, kept, room):
        widths = _widths(least, full, part, room)
        table = Table(box=style)
        for i in part:
            table.add_column(Text(columns[i]), width=widths[i], overflow="fold")
        for number, row in enumerate(rows):
            if number in rules:
                table.add_section()
            table.add_row(*(row[i] for i in part))
        console.print(table)
    return [name for i, name in enumerate(columns) if i not in kept]


def table_width(console: Console, wanted: int) -> int:
    """Characters that a table may take: the terminal's, or what it wants where a file has no width."""
    return console.width if has_width(console) else max(console.width, min(wanted, WIDEST))


def has_width(console: Console) -> bool:
    """Whether lines must end somewhere: in a terminal, or where COLUMNS says so; a file has no width."""
    return console.is_terminal or os.environ.get("COLUMNS", "").isdigit()


def _longest_line(text: str) -> int:
    return max((Text(line).cell_len for line in text.split("\n")), default=0)


def _longest_word(text: str) -> int:
    return max((Text(word).cell_len for word in text.split()), default=0)


def _taken(least: Sequence[int], part: Sequence[int]) -> int:
    return sum(least[i] for i in part) + FRAME * len(part) + 1


def _parts(least: Sequence[int], kept: Sequence[int], room: int) -> list[list[int]]:
    """Columns of each table; all begin with the first one."""
    parts = [[kept[0]]]
    for i in kept[1:]:
        if _taken(least, [*parts[-1], i]) > room and len(parts[-1]) > 1:
            parts.append([kept[0]])
        parts[-1].append(i)
    return parts


def _widths(least: Sequence[int], full: Sequence[int], part: Sequence[int], room: int) -> dict[int, int]:
    """As little as each column needs, and what is left to numbers evenly, then to names."""
    widths = {i: least[i] for i in part}
    left = room - _taken(least, part)
    for group in (part[1:], part[:1]):
        while left > 0 and (narrow := [i for i in group if widths[i] < full[i]]):
            for i in narrow[:left]:
                widths[i] += 1
                left -= 1
    if left < 0:  # not even words fit: the widest column folds them
        widest = max(part, key=lambda i: widths[i])
        widths[widest] = max(1, widths[widest] + left)
    return widths
