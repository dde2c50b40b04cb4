"""ProtoGCD: SimGCD with hard targets for confident rows, more and more of them, and prototypes that are kept apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from gcdbench_simgcd import SimGCD, SimGCDConfig
from torch import Tensor

from gcdbench import Batch, Losses, Progress
from gcdbench.errors import UsageError
from gcdbench.toolbox.losses import in_float32
from gcdbench.toolbox.schedules import warm_down


@dataclass(frozen=True)
class ProtoGCDConfig(SimGCDConfig):
    """Settings of ProtoGCD; those of SimGCD besides."""

    entropy_weight: float = 2.0
    """Weight of mean-entropy maximisation."""
    teacher_temp_start: float = 0.05
    """Temperature of the teacher's distribution in the first epoch: here it stays."""
    teacher_temp_end: float = 0.05
    """Temperature of the teacher's distribution after the warm-up."""
    hard_epochs: int = 100
    """Epochs over which the share of rows with hard targets rises from none to all."""
    separation_weight: float = 0.1
    """Weight of the prototypes' separation among the unsupervised terms."""
    separation_temp: float = 0.1
    """Its temperature."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.separation_temp <= 0:
            raise UsageError(f"method.separation_temp is {self.separation_temp}; a temperature must be positive.")
        if self.hard_epochs < 1:
            raise UsageError(f"method.hard_epochs is {self.hard_epochs}; it must be at least 1.")
        if self.separation_weight < 0:
            raise UsageError(f"method.separation_weight is {self.separation_weight}; it must not be negative.")


@in_float32
def adaptive_distillation(logits: Tensor, student_temp: float, teacher_temp: float, share: float) -> Tensor:
    """Each view teaches the other; in each view the share of rows whose first class stands out most from the second
    teaches that class alone. One value per row."""
    log_p1, log_p2 = F.log_softmax(logits / student_temp, dim=1).chunk(2)
    q1, q2 = (targets(view, teacher_temp, share) for view in logits.detach().chunk(2))
    return -0.5 * ((q1 * log_p2).sum(1) + (q2 * log_p1).sum(1))


def targets(logits: Tensor, temperature: float, share: float) -> Tensor:
    """Soft targets, and hard ones where the first class is most probable relative to the second."""
    soft = F.softmax(logits / temperature, dim=1)
    hard_rows = int(share * len(soft))
    if not hard_rows or soft.shape[1] < 2:
        return soft
    # The ratio of two softmax values is the difference of their logits, which does not overflow.
    best = logits.topk(2, dim=1).values
    chosen = (best[:, 0] - best[:, 1]).topk(hard_rows).indices
    hard = F.one_hot(logits.argmax(1), logits.shape[1]).to(soft.dtype)
    return soft.index_copy(0, chosen, hard[chosen])


@in_float32
def separation(prototypes: Tensor, temperature: float) -> Tensor:
    """Mean over prototypes of the log of their mean exponential similarity with the others."""
    unit = F.normalize(prototypes, dim=1)
    count = len(unit)
    if count < 2:
        return prototypes.sum() * 0
    own = torch.eye(count, dtype=torch.bool, device=unit.device)
    similar = (unit @ unit.T / temperature).masked_fill(own, -torch.inf)
    others = torch.full((), float(count - 1), device=unit.device, dtype=unit.dtype)
    return (similar.logsumexp(1) - others.log()).mean()


class ProtoGCD(SimGCD):
    """ProtoGCD: Unified and Unbiased Prototype Learning for GCD (TPAMI 2025)."""

    Config: ClassVar[type] = ProtoGCDConfig
    recipes: ClassVar[tuple[str, ...]] = ("released",)

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """SimGCD's terms with other targets, and the separation."""
        c: ProtoGCDConfig = self.config
        losses, logits = self.terms(batch, t)
        unsup = losses.pop("self").weight
        teacher = warm_down(c.teacher_temp_start, c.teacher_temp_end, c.teacher_temp_epochs, t.epoch)
        share = min(1.0, t.epoch / max(1, c.hard_epochs - 1))
        losses.add("self", adaptive_distillation(logits, c.student_temp, teacher, share).mean(), unsup)
        apart = separation(self.classifier.weight, c.separation_temp)
        losses.add("separation", apart, unsup * c.separation_weight)
        return losses
