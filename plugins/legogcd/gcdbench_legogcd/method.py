"""LegoGCD: SimGCD that keeps what it knows of base classes, by regularising confident base predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from gcdbench_simgcd import SimGCD, SimGCDConfig

from gcdbench import Batch, Losses, Progress, Task
from gcdbench.errors import UsageError
from gcdbench_legogcd.losses import confident_base, dual_view_kl, local_entropy, moved


@dataclass(frozen=True)
class LegoGCDConfig(SimGCDConfig):
    """Settings of LegoGCD; those of SimGCD besides."""

    threshold: float = 0.85
    """Probability from which an unlabelled view counts as a known base one; the authors choose it per dataset."""
    ler_weight: float = 2.0
    """Weight of the local entropy regularisation; a literal 2 in the authors' code, but 1 in their logs on CIFAR."""
    ler_temp: float = 0.05
    """Temperature of the distributions of the local entropy regularisation."""
    ler_margin: float = 0.4
    """Weight of the log of the running class distribution that is added to the logits."""
    marginal_momentum: float = 0.999
    """Momentum of the running class distribution."""
    dkl_weight: float = 1.0
    """Weight of the dual-view divergence beside the self-distillation."""
    double_softmax: bool = False
    """Take the divergence between softmaxes of probabilities, as the released code does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ler_temp <= 0:
            raise UsageError(f"method.ler_temp is {self.ler_temp}; a temperature must be positive.")
        for name in ("threshold", "marginal_momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must lie between 0 and 1.")


class LegoGCD(SimGCD):
    """SimGCD with local entropy regularisation and a dual-view divergence (Cao et al., CVPR 2024)."""

    Config: ClassVar[type] = LegoGCDConfig
    recipes: ClassVar[tuple[str, ...]] = ("paper", "released")
    marginal: torch.Tensor

    def __init__(self, config: LegoGCDConfig, task: Task) -> None:
        super().__init__(config, task)
        self.register_buffer("marginal", torch.full((task.num_classes,), 1 / task.num_classes))

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """SimGCD's terms and two more."""
        c: LegoGCDConfig = self.config
        losses, logits = self.terms(batch, t)
        losses.add("dkl", dual_view_kl(logits, c.student_temp, c.double_softmax), (1 - c.sup_weight) * c.dkl_weight)
        unlabelled = ~batch.labelled.repeat(2)
        chosen = confident_base(logits, unlabelled, self.task.num_base, c.student_temp, c.threshold)
        # A copy: the buffer moves on before the backward pass.
        ler = local_entropy(logits, chosen, self.marginal.clone(), c.ler_temp, c.ler_margin)
        losses.add("ler", ler, c.ler_weight)
        if self.training:
            self.marginal.copy_(moved(self.marginal, logits, c.marginal_momentum))
        return losses

    @classmethod
    def reference_config(cls, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """The published implementation's names for these settings."""
        return {**super().reference_config(settings, shapes), "threshold": settings["args"]["thr"]}
