"""Settings of CRNCD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gcdbench_simgcd import SimGCDConfig

from gcdbench.errors import UsageError


@dataclass(frozen=True)
class CRNCDConfig(SimGCDConfig):
    """Settings of CRNCD; those of SimGCD besides, which count with `objective` simgcd."""

    objective: Literal["simgcd", "uno"] = "simgcd"
    """What discovers classes: SimGCD's terms, or UNO's swapped predictions as in the published method."""
    kd_weight: float = 0.1
    """Weight of the distillation from the model of the base classes."""
    kd_temp: float = 4.0
    """Both distributions of the distillation are softened by this, on top of `student_temp`."""
    detach_weight: bool = False
    """Keep the gradient out of the weight of each row in the distillation; in the authors' code it runs through it."""
    start_from_stage1: bool = True
    """Discovery starts from the tail and the base prototypes of the first stage; else from the backbone again."""
    pretrain_epochs: int = 50
    """Epochs of supervised training on labelled rows before discovery."""
    pretrain_lr: float = 1e-3
    """Largest learning rate (AdamW) of the supervised stage."""
    pretrain_warmup: int = 5
    """Epochs of the supervised stage over which its rate rises."""
    adam_decay: float = 1.5e-4
    """Weight decay wherever AdamW is used: in the supervised stage, and in discovery with `objective` uno."""
    adam_floor: float = 0.1
    """Share of their largest rate from which rates of AdamW rise and to which they fall."""
    heads: int = 2
    """`objective` uno: heads that cluster."""
    warmup_epochs: int = 10
    """`objective` uno: epochs of discovery over which the rate rises."""
    sinkhorn_epsilon: float = 0.05
    """`objective` uno: sharpness of the assignments."""
    sinkhorn_iterations: int = 3
    """`objective` uno: iterations of Sinkhorn-Knopp."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.kd_temp, self.sinkhorn_epsilon, self.pretrain_lr) <= 0:
            raise UsageError("method.kd_temp, sinkhorn_epsilon and pretrain_lr must be positive.")
        for name in ("kd_weight", "pretrain_warmup", "adam_decay", "warmup_epochs"):
            if getattr(self, name) < 0:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must not be negative.")
        if min(self.pretrain_epochs, self.heads, self.sinkhorn_iterations) < 1:
            raise UsageError("method.pretrain_epochs, heads and sinkhorn_iterations must be at least 1.")
        if not 0 <= self.adam_floor <= 1:
            raise UsageError(f"method.adam_floor is {self.adam_floor}; it is a share of the rate, from 0 to 1.")
