"""What a checkpoint holds of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

VERSION = 1
"""Version of the format; checkpoints from before it was written down have none, and the same fields."""


@dataclass(frozen=True)
class EpochState:
    """What a checkpoint from the middle of an epoch holds of that epoch."""

    random: Any
    """State of the numbers that methods are given for each step."""
    ambient: Any
    """State of torch's own random numbers."""
    sums: list[Any]
    """Running sums of the loss terms."""
    seconds: float
    """Time the epoch has taken so far."""
    lanes: int
    """Runs that shared its trunk passes."""


@dataclass(frozen=True)
class LaneState:
    """Everything from which a run continues. The names of fields are the keys of the file."""

    run: str
    """Run id."""
    made_with: dict[str, Any]
    """What rounding depends on besides the config: versions, device, threads, processes."""
    files: dict[str, str]
    """Hashes of the image files by part."""
    notes: list[str]
    """Sentences for the record."""
    stage: int
    epoch: int
    step: int
    lane: dict[str, Any]
    """Weights, optimisers and gradient scaler (see `MethodTrainer.state`)."""
    selected: dict[str, Any] | None
    """Predictions of the best epoch so far, where the selection rule wants them."""
    saves_within: bool
    """Whether the run can be saved in the middle of an epoch."""
    within: EpochState | None
    """None at the end of an epoch."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `torch.save`."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"version": VERSION, **plain, "within": None if self.within is None else vars(self.within)}

    @staticmethod
    def known(tree: Mapping[str, Any]) -> bool:
        """Whether a file's content has this form, in a version that can be read."""
        return tree.keys() >= {f.name for f in fields(LaneState)} and tree.get("version", VERSION) == VERSION

    @staticmethod
    def from_dict(tree: Mapping[str, Any]) -> LaneState:
        """What `as_dict` gave."""
        within = tree["within"]
        values = {f.name: tree[f.name] for f in fields(LaneState)}
        return LaneState(**{**values, "within": None if within is None else EpochState(**within)})
