"""TensorBoard: `tensorboard --logdir runs` shows every tracked run while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gcdbench.contracts import Tracker
from gcdbench.errors import UsageError


class TensorBoardTracker(Tracker):
    """Writes event files to `tensorboard/` in the run directory."""

    name = "tensorboard"

    def start(self, folder: Path, config: Mapping[str, Any], epochs_done: int) -> None:
        """Open the event file; a continued run hides what was logged after its checkpoint."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as fault:
            raise UsageError("--track tensorboard needs the package: pip install 'gcdbench[tensorboard]'.") from fault
        purge = {"purge_step": epochs_done + 1} if epochs_done else {}
        self.writer = SummaryWriter(folder / "tensorboard", **purge)

    def step(self, step: int, means: Mapping[str, float]) -> None:
        """Running means of the loss terms, against the step of the whole run."""
        for name, value in means.items():
            self.writer.add_scalar(f"running/{name}", value, step)
        self.writer.flush()

    def epoch(self, number: int, line: Mapping[str, Any]) -> None:
        """Losses, rates and accuracies, against the epoch of the whole run."""
        for group, prefix in (("losses", "loss"), ("lr", "lr"), ("metrics", "metric")):
            for name, value in line.get(group, {}).items():
                self.writer.add_scalar(f"{prefix}/{name}", value, number)
        self.writer.flush()

    def finish(self, record: Mapping[str, Any]) -> None:
        """The final numbers."""
        for name, value in record["metrics"].items():
            self.writer.add_scalar(f"final/{name}", value, record["selected"]["epoch"])

    def close(self) -> None:
        """Close the event file."""
        self.writer.close()
