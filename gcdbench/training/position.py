"""Where a run stands: its stage, its epoch and its step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gcdbench.contracts import Stage


@dataclass
class EpochPosition:
    """What comes next. Stages without epochs are passed over by `advance`."""

    stages: Sequence[Stage] = ()
    number: int = 0
    """Of the stage."""
    epoch: int = 0
    """Of the stage, counted from 0."""
    step: int = 0
    """Steps of the epoch that are done."""

    @property
    def over(self) -> bool:
        """Whether training has ended."""
        return self.number >= len(self.stages)

    @property
    def stage(self) -> Stage:
        """The stage that is being trained."""
        return self.stages[self.number]

    @property
    def name(self) -> tuple[str, int] | None:
        """Stage and epoch that come next, equal for lanes that see the same batches; None when training is over."""
        return None if self.over else (self.stage.name, self.epoch)

    @property
    def epochs_done(self) -> int:
        """Epochs of all stages so far."""
        return sum(stage.epochs for stage in self.stages[: self.number]) + self.epoch

    @property
    def stage_done(self) -> bool:
        """Whether the current stage has no epoch left."""
        return not self.over and self.epoch >= self.stage.epochs

    def next_stage(self) -> None:
        """To the beginning of the stage after this one."""
        self.number, self.epoch = self.number + 1, 0

    def next_epoch(self) -> None:
        """To the beginning of the epoch after this one."""
        self.epoch, self.step = self.epoch + 1, 0
