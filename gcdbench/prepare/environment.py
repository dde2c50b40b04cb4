"""Where and with what runs are made; none of it changes a result."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gcdbench.data.store.store_folder import cache_root
from gcdbench.errors import UsageError
from gcdbench.system.parallel.communicator import ALONE, Communicator

DEFAULT_RUNS = Path("runs")
MAX_LANES = 32
"""Runs that are trained together at most, unless the user says otherwise: each keeps a tail and its optimiser."""
CHECKPOINT_EVERY = 300.0
"""Seconds between checkpoints within an epoch, unless the user says otherwise; each epoch ends with one anyway."""


@dataclasses.dataclass(frozen=True)
class StoreOptions:
    """Where stores are, and whether images are packed."""

    root: Path
    packs: bool = True

    @staticmethod
    def at(given: Path | None = None, packs: bool = True) -> StoreOptions:
        """In a given folder or the default one."""
        return StoreOptions(cache_root(given), packs)


@dataclasses.dataclass(frozen=True)
class RunEnvironment:
    """The same for the command line, Python and the jobs of a sweep."""

    runs: Path = DEFAULT_RUNS
    root: Path = Path("data")
    """Folder of datasets."""
    device: str = "auto"
    workers: int | None = None
    """Threads that read images."""
    store_options: StoreOptions = dataclasses.field(default_factory=StoreOptions.at)
    lanes: int = MAX_LANES
    """Runs that are trained together at most."""
    checkpoint_every: float = CHECKPOINT_EVERY
    """Seconds between checkpoints within an epoch."""
    ranks: Communicator = ALONE
    """The processes that work on each run together."""

    def __post_init__(self) -> None:
        if not self.checkpoint_every >= 0:
            raise UsageError(f"checkpoint_every is {self.checkpoint_every}; it is a number of seconds, at least 0.")
        if self.lanes < 1:
            raise UsageError(f"lanes is {self.lanes}; at least one run must be trained at a time.")
