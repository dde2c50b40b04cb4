"""Options that say where and with what runs are made; none of them changes a result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gcdbench.cli.options import Finite, PathType, data_root_option, device_option, runs_option
from gcdbench.errors import UsageError

if TYPE_CHECKING:
    from gcdbench.prepare.environment import RunEnvironment

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
    help="Train each run on this many GPUs (on a CPU: processes) of this machine; the result is that of one.",
)


def where_options(command: Command) -> Command:
    """Add all of them to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def environment_options(command: Command) -> Command:
    """The same and `--gpus`, for a command that works within `on_ranks`."""
    return where_options(_GPUS(command))


@contextmanager
def on_ranks(options: dict[str, Any], alone: bool = False) -> Iterator[RunEnvironment]:
    """Where and with what to make runs, on as many ranks as the user or a launcher wants: started here, in which case
    this process only looks after them, or joined. Removes these options from a command's options.

    ``alone`` starts none, for what one process does as well.
    """
    from gcdbench.system.parallel.spawn import launched

    gpus = options.pop("gpus", None)
    if launched():
        from gcdbench.system.parallel.join import joined

        if gpus is not None and gpus != int(os.environ["WORLD_SIZE"]):
            raise UsageError(f"--gpus is {gpus}, but a launcher has started {os.environ['WORLD_SIZE']} processes.")
        with joined(options["device"]) as ranks:
            if not ranks.first:  # whatever it would print, the first rank prints
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            yield take_environment(options)
        return
    if (gpus or 1) > 1 and not alone:
        from gcdbench.system.parallel.spawn import start_ranks

        context = click.get_current_context()
        context.exit(start_ranks(context.obj["arguments"], gpus))
    yield take_environment(options)


def take_environment(options: dict[str, Any]) -> RunEnvironment:
    """Remove these options from a command's options; those it does not have keep their defaults."""
    from gcdbench.data.data_root import data_root
    from gcdbench.prepare.environment import CHECKPOINT_EVERY, MAX_LANES, RunEnvironment, StoreOptions
    from gcdbench.system.parallel.join import current

    return RunEnvironment(
        runs=options.pop("runs"),
        root=data_root(options.pop("data_root")),
        device=options.pop("device"),
        workers=options.pop("workers", None),
        store_options=StoreOptions.at(options.pop("cache", None), options.pop("image_store", True)),
        lanes=options.pop("lanes", None) or MAX_LANES,
        checkpoint_every=CHECKPOINT_EVERY if (every := options.pop("checkpoint_every", None)) is None else every,
        ranks=current(),
    )
