"""What the engine tells whoever watches a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gcdbench.contracts import Progress
from gcdbench.errors import GcdbenchError

if TYPE_CHECKING:
    from gcdbench.prepare.run_context import Workspace
    from gcdbench.training.lane import Runner


class Reporter:
    """Told about everything that happens; must be quick. This one shows nothing; override what should be shown."""

    def started(self, spaces: Sequence[Workspace], resumed_at: int) -> None:
        """Runs begin that share trunk passes (or go on, the first of them after so many epochs)."""

    def step(self, t: Progress, runners: Sequence[Runner]) -> None:
        """A step of all lanes is done; each runner knows the means of its losses at its last look."""

    def epoch(self, t: Progress, runners: Sequence[Runner]) -> None:
        """An epoch of all lanes is done."""

    def dropped(self, space: Workspace, fault: GcdbenchError) -> None:
        """A run has failed; those that share its trunk passes go on."""

    def working(self, name: str, done: int, total: int) -> None:
        """So much of some other long work is done."""

    def phase(self, name: str) -> None:
        """Something else that takes time begins."""

    def announce(self, text: str) -> None:
        """A line that should stay: what begins now, what is being written."""

    def warn(self, message: str) -> None:
        """Something a person should know."""

    def finished(self) -> None:
        """The run is over, well or badly."""
