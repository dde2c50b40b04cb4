"""Options that say where and with what runs are made; none of them changes a result."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from gcdbench.cli.options import Finite, PathType, data_root_option, device_option, runs_option
from gcdbench.errors import UsageError

if TYPE_CHECKING:
    from gcdbench.runs.execute import Place

Command = TypeVar("Command", bound=Callable[..., Any])

cache_option = click.option(
    "--cache",
    type=PathType(path_type=Path, file_okay=False),
    help="Folder for stores of images and tokens (default: $GCDBENCH_CACHE or ~/.cache/gcdbench).",
)
_OPTIONS = (
    runs_option,
    data_root_option,
    device_option,
    click.option("--workers", type=click.IntRange(0), help="Threads that read images (default: one per core)."),
    cache_option,
    click.option(
        "--image-store/--no-image-store",
        default=True,
        help="Decode images once into a store, or in every epoch.  [default: once]",
    ),
    click.option(
        "--checkpoint-every",
        type=Finite(0),
        metavar="SECONDS",
        help="Time between checkpoints within an epoch; each epoch ends with one.  [default: 300]",
    ),
    click.option("--lanes", type=click.IntRange(1), help="Runs that are trained together at most.  [default: 32]"),
)
_GPUS = click.option(
    "--gpus",
    type=click.IntRange(1),
    help="Train each run on so many GPUs (on a CPU: processes) of this machine; the result is that of one.",
)


def where_options(command: Command) -> Command:
    """Add all of them to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def place_options(command: Command) -> Command:
    """The same for a command that is run on as many ranks as the user or a launcher wants."""
    return where_options(_GPUS(_on_ranks(command)))


def _on_ranks(command: Command) -> Command:
    @functools.wraps(command)
    def wrapped(gpus: int | None, **options: Any) -> Any:
        from gcdbench.system.parallel.spawn import launched

        wanted = 1 if options.get("dry_run") and not launched() else gpus
        return on_ranks(wanted, options["device"], lambda: command(**options))

    return cast(Command, wrapped)


def on_ranks(gpus: int | None, device: str, action: Callable[[], Any]) -> Any:
    """Do something on so many ranks: start them, or join those that a launcher has started."""
    from gcdbench.system.parallel.spawn import launched, start_ranks

    if not launched():
        if (gpus or 1) == 1:
            return action()
        context = click.get_current_context()
        context.exit(start_ranks(context.obj["arguments"], gpus or 1))
    from gcdbench.system.parallel.join import joined

    if gpus is not None and gpus != int(os.environ["WORLD_SIZE"]):
        raise UsageError(f"--gpus is {gpus}, but a launcher has started {os.environ['WORLD_SIZE']} processes.")
    with joined(device) as ranks:
        if not ranks.first:  # whatever it would print, the first rank prints
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return action()


def take_place(options: dict[str, Any]) -> Place:
    """Remove these options from a command's options; those it does not have keep their defaults."""
    from gcdbench.data.data_root import data_root
    from gcdbench.prepare.token_stores import Shelf
    from gcdbench.runs.execute import Place
    from gcdbench.runs.lane_groups import MAX_LANES
    from gcdbench.system.parallel.join import current
    from gcdbench.training.loop import CHECKPOINT_EVERY

    return Place(
        runs=options.pop("runs"),
        root=data_root(options.pop("data_root")),
        device=options.pop("device"),
        workers=options.pop("workers", None),
        shelf=Shelf.at(options.pop("cache", None), options.pop("image_store", True)),
        lanes=options.pop("lanes", None) or MAX_LANES,
        checkpoint_every=CHECKPOINT_EVERY if (every := options.pop("checkpoint_every", None)) is None else every,
        ranks=current(),
    )
