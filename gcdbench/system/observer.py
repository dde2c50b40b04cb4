"""What whoever watches a run is shown: plain values, so that nothing here depends on how runs are trained."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gcdbench.errors import GcdbenchError


@dataclass(frozen=True)
class RunName:
    """Which run something is about."""

    method: str
    recipe: str
    dataset: str
    seed: int
    epochs: int
    """Epochs that its config asks for."""


@dataclass(frozen=True)
class Step:
    """A step, or an epoch, that lanes have done together."""

    stage: str
    epoch: int
    """Counted from 0."""
    epochs: int
    """Of the stage."""
    step: int
    """Counted from 0."""
    steps_per_epoch: int
    epochs_done: int
    """Epochs of all stages before this one."""
    lanes: Sequence[tuple[RunName, Mapping[str, float]]]
    """Each run with the means of its loss terms when they were last looked at."""


class Observer:
    """Called about everything that happens; must be quick. This one shows nothing; override what should be shown."""

    def started(self, runs: Sequence[RunName], resumed_at: int) -> None:
        """Runs begin that share trunk passes (or resume, the one that is furthest behind after this many epochs)."""

    def step(self, step: Step) -> None:
        """A step of all lanes is done."""

    def epoch(self, step: Step) -> None:
        """An epoch of all lanes is done; ``step`` was its last one."""

    def dropped(self, run: RunName, fault: GcdbenchError) -> None:
        """A run has failed; those that share its trunk passes continue."""

    def working(self, name: str, done: int, total: int) -> None:
        """Progress of some other long work."""

    def phase(self, name: str) -> None:
        """Something else that takes time begins."""

    def announce(self, text: str) -> None:
        """A line that should stay: what begins now, what is being written."""

    def warn(self, message: str) -> None:
        """Something a person should know."""

    def finished(self) -> None:
        """The run is over, well or badly."""


class LoggingObserver(Observer):
    """Passes what should stay on to Python's `logging`, under the name `gcdbench`; what runs from Python use."""

    def __init__(self) -> None:
        self.log = logging.getLogger("gcdbench")

    def dropped(self, run: RunName, fault: GcdbenchError) -> None:
        """As an error."""
        self.log.error("%s (%s), seed %d stopped: %s", run.method, run.recipe, run.seed, fault)

    def announce(self, text: str) -> None:
        """As information."""
        self.log.info(text)

    def warn(self, message: str) -> None:
        """As a warning."""
        self.log.warning(message)
