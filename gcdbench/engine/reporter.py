"""What the engine tells whoever watches a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gcdbench.contracts import Progress

if TYPE_CHECKING:
    from gcdbench.engine.lane import Lane
    from gcdbench.engine.workspace import Workspace


class Reporter:
    """Told about everything that happens; must be quick. This one shows nothing; override what should be shown."""

    def started(self, workspace: Workspace, resumed_at: int) -> None:
        """A run begins (or goes on after so many epochs)."""

    def step(self, t: Progress, lane: Lane) -> None:
        """A step is done. Asking the lane for its means waits for the device, so do it rarely."""

    def epoch(self, t: Progress, line: dict[str, Any]) -> None:
        """An epoch is done; ``line`` is what goes into metrics.jsonl."""

    def phase(self, name: str) -> None:
        """Something else that takes time begins."""

    def announce(self, text: str) -> None:
        """The next of several runs or rows begins."""

    def warn(self, message: str) -> None:
        """Something a person should know."""

    def finished(self) -> None:
        """The run is over, well or badly."""
