"""TensorBoard: `tensorboard --logdir runs` shows every tracked run while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gcdbench.contracts import Tracker
from gcdbench.errors import UsageError


class TensorBoardTracker(Tracker):
    """Writes event files to `tensorboard/` in the run directory: epochs there, running means below `steps/`."""

    name = "tensorboard"

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as fault:
            raise UsageError("--track tensorboard needs the package: pip install 'gcdbench[tensorboard]'.") from fault
        self._writer_class = SummaryWriter
        self._open: list[Any] = []

    def start(self, folder: Path, config: Mapping[str, Any], epochs_done: int, steps_done: int) -> None:
        """Open the event files; a continued run hides what was logged after its checkpoint."""
        # Two files, because hiding goes by number: one counts epochs, the other steps.
        self.epochs = self._writer(folder / "tensorboard", epochs_done + 1 if epochs_done else None)
        self.steps = self._writer(folder / "tensorboard" / "steps", steps_done or None)

    def _writer(self, folder: Path, purge: int | None) -> Any:
        made = self._writer_class(folder, **({} if purge is None else {"purge_step": purge}))
        self._open.append(made)
        return made

    def step(self, step: int, means: Mapping[str, float]) -> None:
        """Running means of the loss terms, against the step of the whole run."""
        for name, value in means.items():
            self.steps.add_scalar(f"running/{name}", value, step)
        self.steps.flush()

    def epoch(self, number: int, line: Mapping[str, Any]) -> None:
        """Losses, rates and accuracies, against the epoch of the whole run."""
        for group, prefix in (("losses", "loss"), ("lr", "lr"), ("metrics", "metric")):
            for name, value in line.get(group, {}).items():
                self.epochs.add_scalar(f"{prefix}/{name}", value, number)
        self.epochs.flush()

    def finish(self, record: Mapping[str, Any]) -> None:
        """The final numbers."""
        for name, value in record["metrics"].items():
            self.epochs.add_scalar(f"final/{name}", value, record["selected"]["epoch"])

    def close(self) -> None:
        """Close the event files."""
        for writer in self._open:
            writer.close()
