"""What ranks other than the first have in place of a run directory and trackers: they compute, and write nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gcdbench.contracts import Progress
from gcdbench.records.run_directory import RunDirectory
from gcdbench.records.trackers import Trackers


class Unwritten(RunDirectory):
    """A run directory that another rank writes."""

    is_run = True

    def log(self, message: str) -> None:
        """The first rank logs."""

    def epochs(self) -> list[dict[str, Any]]:
        """The first rank knows."""
        return []

    def write_skipped(self, rows: Iterable[tuple[str, str]]) -> None:
        """The first rank writes."""


class Untracked(Trackers):
    """Trackers of a run that another rank tracks."""

    def __init__(self) -> None:
        super().__init__((), lambda text: None)

    def start(self, folder: Path, config: Mapping[str, Any], epochs_done: int, steps: int) -> None:
        """Nothing is tracked here."""

    def step(self, t: Progress, means: Mapping[str, float]) -> None:
        """Nothing is tracked here."""

    def epoch(self, line: Mapping[str, Any]) -> None:
        """Nothing is tracked here."""
