"""Settings of RLCD. The defaults are the paper's; `presets/released.toml` turns them into the released code's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gcdbench.errors import UsageError


@dataclass(frozen=True)
class RLCDConfig:
    """Every switch of the paper's studies and every difference between paper and released code."""

    # ---- which terms are on (ablation rows a to h) ----
    main_self: bool = True
    """Self-distillation and mean entropy of the main branch; off leaves the supervised reference (SupRef)."""
    aux: bool = True
    """Losses of the auxiliary branch."""
    distill: bool = True
    """Cross-branch distillation from the auxiliary to the main branch."""
    reg_on: Literal["none", "main", "both"] = "both"
    """Branches that are regularised."""

    # ---- weights ----
    sup_weight: float = 0.35
    """lambda: supervised share of the main branch's loss."""
    entropy_weight: float = 2.0
    """epsilon: weight of mean-entropy maximisation inside the unsupervised share."""
    alpha: float = 0.5
    """Weight of the distillation."""
    beta: float = 0.5
    """Weight of the regulariser."""
    beta_inside: bool = False
    """Multiply beta by each branch's unsupervised share, as the released code does."""
    aux_sup_weight: float = 1.0
    """Weight of the auxiliary branch's supervised terms."""
    aux_self_weight: float = 1.0
    """Weight of the auxiliary branch's self-supervised term."""

    # ---- temperatures ----
    student_temp: float = 0.07
    """tau_s of the main branch."""
    aux_temp: float = 0.07
    """tau_s of the auxiliary branch."""
    aux_ce_temp: float | None = None
    """Temperature of the auxiliary branch's cross entropy; None takes `aux_temp`."""
    reg_temp: float = 0.07
    """Temperature of the main probabilities that are regularised."""
    teacher_temp_start: float = 0.07
    """tau_t in the first epoch."""
    teacher_temp_end: float = 0.04
    """tau_t after the warm-up."""
    teacher_temp_epochs: int = 30
    """Epochs over which tau_t falls linearly."""
    supcon_temp: float = 0.1
    """tau_c of both supervised contrastive losses."""

    # ---- pseudo-base rows and distillation ----
    pseudo_base: Literal["predicted", "predicted_or_labelled"] = "predicted"
    """Which rows are pseudo-base: those the main branch puts into a base class, with or without labelled ones."""
    distill_on: Literal["pseudo_base", "all", "learnable"] = "pseudo_base"
    """Rows that are distilled: pseudo-base, all, or all weighted by the main branch's mass on base classes."""
    uncertainty: Literal["zero", "one", "main_cos", "aux_cos", "main_prob", "aux_prob"] = "aux_prob"
    """Weight of a distilled row (ignored by `learnable`)."""
    distill_loss: Literal["kl", "cross_entropy"] = "kl"
    """Divergence; the cross entropy has the same gradient and another value."""

    # ---- the auxiliary branch ----
    aux_self: Literal["sharpened", "symmetric_kl"] = "sharpened"
    """Self-supervision of the auxiliary branch on rows that are pseudo-base in both views."""
    aux_anchors: Literal["all", "one"] = "all"
    """Anchors of the auxiliary supervised contrastive loss: both views or the first only."""
    aux_init_std: float = 0.01
    """Spread of the AUX token's initial values (truncated normal)."""
    aux_start: Literal["token", "cls"] = "token"
    """What AUX enters the last block as: the trained token itself, or that token added to the image's CLS token."""
    aux_warmup: float = 0.0
    """Share of the epochs before the auxiliary branch, its regulariser and the distillation start."""

    # ---- the regulariser ----
    regularizer: Literal["cdr", "pdr", "ent", "mcc", "lerm"] = "cdr"
    """Which regulariser acts on the class distributions."""
    reg_classes: Literal["all", "present"] = "all"
    """CDR averages over all classes, or over those present among the hard labels of the batch."""

    # ---- architecture and optimiser ----
    final_norm: bool = False
    """Apply the backbone's final LayerNorm to CLS and AUX."""
    param_groups: Literal["plain", "difflr"] = "plain"
    """`plain`: no decay on 1-d parameters; `difflr`: last block at a tenth of the rate, decay on everything."""

    def __post_init__(self) -> None:
        for name in (
            "student_temp",
            "aux_temp",
            "reg_temp",
            "teacher_temp_start",
            "teacher_temp_end",
            "supcon_temp",
        ):
            if getattr(self, name) <= 0:
                raise UsageError(f"method.{name} is {getattr(self, name)}; a temperature must be positive.")
        if self.aux_ce_temp is not None and self.aux_ce_temp <= 0:
            raise UsageError(f"method.aux_ce_temp is {self.aux_ce_temp}; a temperature must be positive.")
        if self.aux_init_std < 0:
            raise UsageError(f"method.aux_init_std is {self.aux_init_std}; it must not be negative.")
        for name in ("sup_weight", "aux_warmup"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must lie between 0 and 1.")
