"""Settings of DCCL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gcdbench_baselines.gcd import GCDConfig

from gcdbench.errors import UsageError


@dataclass(frozen=True)
class DCCLConfig(GCDConfig):
    """Settings of DCCL; those of GCD besides."""

    neighbours: int = 15
    """Most similar rows of each row, itself included, between which links are drawn."""
    smallest_similarity: float = 0.6
    """Cosine below which there is no link."""
    smallest_concept: int = 5
    """Rows of the smallest group that counts as a concept."""
    label_rule: Literal["pairs", "ranks", "none"] = "pairs"
    """Which links are strengthened: between two labelled rows of a class (`pairs`), or as released (`ranks`): where the
    class of a row is that of the row whose number is the neighbour's rank."""
    concept_weight: float = 0.4
    """Weight of the concept loss once it has risen."""
    concept_weight_start: float = 0.1
    """Share of it in the first epoch."""
    concept_weight_epochs: int = 100
    """Epochs over which it rises."""
    concept_temp: float = 0.05
    """Temperature of the concept loss."""
    memory_momentum: float = 0.1
    """Share of itself that a concept's centre keeps when a row of it is seen."""
    warmup_epochs: int = 5
    """Epochs over which the learning rate rises."""
    schedule: Literal["cosine", "released"] = "cosine"
    """After the warm-up half a cosine down to the floor; as `released` the first epoch has a rate of zero, and the
    cosine has the length of the whole training."""
    warm_start_rows: int = 20_000
    """From this many rows on, the search for concepts begins with those of the last epoch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours < 2:
            raise UsageError(
                f"method.neighbours is {self.neighbours}; it counts the row itself and must be at least 2."
            )
        if self.concept_temp <= 0:
            raise UsageError(f"method.concept_temp is {self.concept_temp}; a temperature must be positive.")
        for name in ("smallest_concept", "concept_weight_epochs"):
            if getattr(self, name) < 1:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("concept_weight", "warmup_epochs", "warm_start_rows"):
            if getattr(self, name) < 0:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must not be negative.")
        for name in ("smallest_similarity", "concept_weight_start", "memory_momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must lie between 0 and 1.")
