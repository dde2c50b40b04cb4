"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

data_root_option = click.option(
    "--data-root",
    type=click.Path(path_type=Path),
    help="Folder that holds the datasets (default: $GCDBENCH_DATA or ./data).",
)
runs_option = click.option(
    "--runs",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Folder for run directories.",
)


class Seeds(click.ParamType):
    """`0`, `0,1,2` or `0-4`."""

    name = "seeds"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """A tuple of different seeds in the order given."""
        if isinstance(value, tuple):
            return value
        found: list[int] = []
        for piece in str(value).split(","):
            low, sign, high = piece.strip().partition("-")
            if not low.isdigit() or (sign and not high.isdigit()):
                self.fail(f"'{value}' is not a list of seeds like 0,1,2 or 0-4.", param, ctx)
            found += range(int(low), int(high) + 1) if sign else [int(low)]
        if not found:
            self.fail(f"'{value}' names no seed.", param, ctx)
        return tuple(dict.fromkeys(found))
