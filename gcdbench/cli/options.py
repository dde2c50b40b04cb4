"""Options that several commands share."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gcdbench.cli import completion
from gcdbench.errors import UsageError, unknown
from gcdbench.system.debugging import Look


class PathType(click.Path):
    """A path; an empty one is a slip, not the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does it, after that check."""
        if not str(value) or (isinstance(value, str) and "\0" in value):
            self.fail("a path must not be empty.", param, ctx)
        return super().convert(value, param, ctx)


class Finite(click.FloatRange):
    """A number; infinite ones and those that are none are slips."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does it, and then that check."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no finite number.", param, ctx)
        return found


data_root_option = click.option(
    "--data-root",
    type=PathType(path_type=Path),
    help="Folder that holds the datasets (default: $GCDBENCH_DATA or ./data).",
)
runs_option = click.option(
    "--runs",
    type=PathType(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Folder for run directories.",
)


device_option = click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda", "mps"]), default="auto", show_default=True
)
set_option = click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=completion.settings,
    help="Any config value, repeatable.",
)
_DEBUGGING = (
    click.option("--traceback", is_flag=True, help="Print the whole traceback of a plugin's fault."),
    click.option("--pdb", is_flag=True, help="Open a debugger where a plugin's fault was raised."),
)


def debugging_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--traceback` and `--pdb`, as parameters of these names."""
    for option in reversed(_DEBUGGING):
        command = option(command)
    return command


def asked_look(traceback: bool, pdb: bool) -> Look:
    """What these options mean."""
    if pdb and not sys.stdin.isatty():
        raise UsageError("--pdb needs a terminal to type into; --traceback does without.")
    return "pdb" if pdb else "traceback" if traceback else "off"


wide_option = click.option("--wide", is_flag=True, help="Show every column, wider than the terminal if need be.")
datasets_option = click.option(
    "--dataset", "datasets", multiple=True, shell_complete=completion.plugins("dataset"), help="Dataset, repeatable."
)

MAX_SEEDS = 1000


class SuggestingGroup(click.Group):
    """A wrong command gets the nearest right one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or a UsageError with the nearest name."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            raise unknown("command", args[0], known)
        return super().resolve_command(ctx, args)


class ClassNumber(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions
    """`12`, or the name of a K estimator."""

    name = "N|estimator"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """A whole number, or text."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        try:
            return int(text)
        except ValueError:
            return text


class Seeds(click.ParamType):  # type: ignore[type-arg]
    """`0`, `0,1,2` or `0-4`."""

    name = "seeds"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """A tuple of different seeds in the order given."""
        if isinstance(value, tuple):
            return value
        found: list[int] = []
        for piece in str(value).split(","):
            low, sign, high = piece.strip().partition("-")
            numbers = [low, high] if sign else [low]
            if not all(n.isascii() and n.isdigit() for n in numbers):
                self.fail(f"'{value}' is not a list of seeds like 0,1,2 or 0-4.", param, ctx)
            if int(numbers[-1]) - int(low) >= MAX_SEEDS:
                self.fail(f"'{value}' names more than {MAX_SEEDS} seeds.", param, ctx)
            found += range(int(low), int(numbers[-1]) + 1)
        if not found:
            self.fail(f"'{value}' names no seed.", param, ctx)
        return tuple(dict.fromkeys(found))
