"""Options that say where and with what runs are made; none of them changes a result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gcdbench.cli.options import PathType, data_root_option, device_option, runs_option

if TYPE_CHECKING:
    from gcdbench.engine.run import Place

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
        type=click.FloatRange(0),
        metavar="SECONDS",
        help="Time between checkpoints within an epoch; each epoch ends with one.  [default: 300]",
    ),
    click.option("--lanes", type=click.IntRange(1), help="Runs that are trained together at most.  [default: 32]"),
)


def place_options(command: Command) -> Command:
    """Add all of them to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_place(options: dict[str, Any]) -> Place:
    """Remove these options from a command's options; those it does not have keep their defaults."""
    from gcdbench.data.locate import data_root
    from gcdbench.engine.groups import MAX_LANES
    from gcdbench.engine.loop import CHECKPOINT_EVERY
    from gcdbench.engine.run import Place
    from gcdbench.engine.stores import Shelf

    return Place(
        runs=options.pop("runs"),
        root=data_root(options.pop("data_root")),
        device=options.pop("device"),
        workers=options.pop("workers", None),
        shelf=Shelf.at(options.pop("cache", None), options.pop("image_store", True)),
        lanes=options.pop("lanes", None) or MAX_LANES,
        checkpoint_every=CHECKPOINT_EVERY if (every := options.pop("checkpoint_every", None)) is None else every,
    )
