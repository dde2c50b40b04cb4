"""Cross-branch distillation: the auxiliary branch teaches the main branch its base-class distribution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.toolbox.losses import in_float32, masked_mean
from gcdbench_rlcd.config import RLCDConfig


@in_float32
def distillation(config: RLCDConfig, main_logits: Tensor, aux_logits: Tensor, chosen: Tensor, num_base: int) -> Tensor:
    """Weighted divergence of the main branch's base-class distribution from the (detached) auxiliary one."""
    base_logits = main_logits[:, :num_base]
    p_aux = (aux_logits.detach() / config.aux_temp).softmax(1)
    if config.distill_loss == "kl":
        log_p = F.log_softmax(base_logits / config.student_temp, dim=1)
        log_aux = F.log_softmax(aux_logits.detach() / config.aux_temp, dim=1)
        per_row = (p_aux * (log_aux - log_p)).sum(1)
    else:
        p = (base_logits / config.student_temp).softmax(1)
        per_row = -(p_aux * (p + 1e-6).log()).sum(1)
    if config.distill_on == "learnable":
        mass = (main_logits / config.student_temp).softmax(1)[:, :num_base].sum(1)
        return (per_row * mass / mass.mean().clamp(min=1e-6)).mean()
    weight = uncertainty_weight(config, base_logits, aux_logits)
    rows = chosen if config.distill_on == "pseudo_base" else torch.ones_like(chosen)
    return masked_mean(per_row * weight, rows)


def uncertainty_weight(config: RLCDConfig, base_logits: Tensor, aux_logits: Tensor) -> Tensor:
    """(rows,) how much each row's distillation counts; never differentiated."""
    base, aux = base_logits.detach(), aux_logits.detach()
    match config.uncertainty:
        case "zero":
            return torch.zeros_like(aux[:, 0])
        case "one":
            return torch.ones_like(aux[:, 0])
        case "main_cos":
            return base.amax(1)
        case "aux_cos":
            return aux.amax(1)
        case "main_prob":
            return (base / config.student_temp).softmax(1).amax(1)
        case "aux_prob":
            return (aux / config.aux_temp).softmax(1).amax(1)
