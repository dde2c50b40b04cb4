"""RLCD: a main branch on CLS over all classes and an auxiliary branch on an AUX token over the base classes.

The main branch picks pseudo-base rows for the auxiliary branch; the auxiliary branch distils its base-class
distribution back. A regulariser keeps both from favouring base classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gcdbench import Batch, Losses, Method, Optim, Pool, Prediction, Progress, Stage, Task, Traits
from gcdbench.toolbox.heads import CosineClassifier
from gcdbench.toolbox.losses import (
    cross_entropy,
    masked_mean,
    negative_mean_entropy,
    self_distillation,
    supervised_contrastive,
    symmetric_kl,
    wide,
)
from gcdbench.toolbox.optim import default_optim, sgd
from gcdbench.toolbox.predicting import predict_by_logits
from gcdbench.toolbox.regularisers import REGULARISERS
from gcdbench.toolbox.schedules import warm_down
from gcdbench_rlcd.config import RLCDConfig
from gcdbench_rlcd.distillation import distillation


class RLCD(Method):
    """Reciprocal learning with class-wise distribution regularisation (Liu et al., ICML 2025)."""

    Config: ClassVar[type] = RLCDConfig
    traits: ClassVar[Traits] = Traits()
    recipes: ClassVar[tuple[str, ...]] = ("released", "paper")

    def __init__(self, config: RLCDConfig, task: Task) -> None:
        super().__init__(config, task)
        dim = task.backbone.embed_dim
        self.tail = task.backbone.tail(norm=config.final_norm, extra_tokens=1)
        self.aux_token = nn.Parameter(torch.zeros(1, dim))
        self.main_head = CosineClassifier(dim, task.num_classes, task.generator)
        self.aux_head = CosineClassifier(dim, task.num_base, task.generator, start="unit")
        if self.aux_token.device.type != "meta" and config.aux_init_std > 0:
            nn.init.trunc_normal_(self.aux_token, std=config.aux_init_std, generator=task.generator)

    def embed(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """CLS and AUX features and the cosines of both heads."""
        cls, aux = self._read(tokens).unbind(1)
        return cls, aux, self.main_head(cls), self.aux_head(aux)

    def _read(self, tokens: Tensor) -> Tensor:
        """(rows, 2, dim): CLS and AUX after the trained blocks."""
        onto: dict[str, Any] = {"on_cls": True} if self.config.aux_start == "cls" else {}
        found: Tensor = self.tail(tokens, self.aux_token, **onto)
        return found

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """The terms of both branches."""
        c: RLCDConfig = self.config
        cls, aux, main_logits, aux_logits = self.embed(batch.tokens)
        teacher = warm_down(c.teacher_temp_start, c.teacher_temp_end, c.teacher_temp_epochs, t.epoch)
        chosen = self._pseudo_base(main_logits, batch.labelled)
        both = chosen.view(2, -1).all(0)
        losses = Losses()
        self._main_terms(losses, cls, main_logits, batch, teacher)
        started = t.epoch >= round(c.aux_warmup * t.epochs)
        if c.distill and started:
            value = distillation(c, main_logits, aux_logits, chosen, self.task.num_base)
            losses.add("distill", value, c.alpha)
        if c.aux and started:
            self._aux_terms(losses, aux, aux_logits, batch, teacher, both)
        if c.reg_on != "none":
            everybody = torch.ones_like(both)
            scale = 1 - c.sup_weight if c.beta_inside else 1.0
            value = self._regularise(main_logits, c.reg_temp, everybody, batch)
            losses.add(f"main_{c.regularizer}", value, c.beta * scale)
        if c.reg_on == "both" and started:
            scale = c.aux_self_weight if c.beta_inside else 1.0
            value = self._regularise(aux_logits, c.aux_temp, both, batch)
            losses.add(f"aux_{c.regularizer}", value, c.beta * scale)
        return losses

    def _main_terms(self, losses: Losses, cls: Tensor, logits: Tensor, batch: Batch, teacher: float) -> None:
        c: RLCDConfig = self.config
        target, labelled = batch.target, batch.labelled
        ce = cross_entropy(logits, target.repeat(2), labelled.repeat(2), c.student_temp)
        losses.add("main_ce", ce, c.sup_weight)
        losses.add("main_supcon", supervised_contrastive(cls, target, labelled, c.supcon_temp), c.sup_weight)
        if c.main_self:
            unsup = 1 - c.sup_weight
            losses.add("main_self", self_distillation(logits, c.student_temp, teacher).mean(), unsup)
            entropy = negative_mean_entropy(logits, c.student_temp)
            losses.add("main_neg_entropy", entropy, unsup * c.entropy_weight)

    def _aux_terms(
        self, losses: Losses, aux: Tensor, logits: Tensor, batch: Batch, teacher: float, both: Tensor
    ) -> None:
        c: RLCDConfig = self.config
        target, labelled = batch.target, batch.labelled
        temperature = c.aux_temp if c.aux_ce_temp is None else c.aux_ce_temp
        ce = cross_entropy(logits, target.repeat(2), labelled.repeat(2), temperature)
        losses.add("aux_ce", ce, c.aux_sup_weight)
        supcon = supervised_contrastive(aux, target, labelled, c.supcon_temp, c.aux_anchors)
        losses.add("aux_supcon", supcon, c.aux_sup_weight)
        if c.aux_self == "sharpened":
            per_row = self_distillation(logits, c.aux_temp, teacher)
        else:
            per_row = symmetric_kl(logits, c.aux_temp)
        losses.add("aux_self", masked_mean(per_row, both), c.aux_self_weight)

    def _pseudo_base(self, main_logits: Tensor, labelled: Tensor) -> Tensor:
        """(2 rows,) whether each view of each row belongs to the auxiliary branch."""
        predicted = main_logits.detach().argmax(1) < self.task.num_base
        if self.config.pseudo_base == "predicted":
            return predicted
        return predicted | labelled.repeat(2)

    def _regularise(self, logits: Tensor, temperature: float, rows: Tensor, batch: Batch) -> Tensor:
        c: RLCDConfig = self.config
        p1, p2 = (wide(logits) / temperature).softmax(1).chunk(2)
        classes = None
        if c.reg_classes == "present":
            classes = _present_classes(logits, rows, batch)
        return REGULARISERS[c.regularizer](p1, p2, rows.to(p1.dtype), classes)

    def logits(self, tokens: Tensor) -> dict[str, Tensor]:
        """Class cosines of both branches."""
        _, _, main, aux = self.embed(tokens)
        return {"main": main, "aux": aux}

    def features(self, tokens: Tensor) -> Tensor:
        """CLS, as the main head sees it."""
        return self._read(tokens)[:, 0]

    def predict(self, pool: Pool) -> Prediction:
        """Argmax of the main branch; the auxiliary branch's base classes are reported beside it."""
        return predict_by_logits(pool, self.logits, self.task.num_base, self.config.student_temp)

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """SGD; with `difflr` the backbone's blocks learn at a tenth of the rate and everything is decayed."""
        train = self.task.train
        if self.config.param_groups == "plain":
            return {"main": default_optim(self, train)}
        block = [p for name, p in self.trained_parameters() if name.startswith("tail.")]
        rest = [p for name, p in self.trained_parameters() if not name.startswith("tail.")]
        groups: list[dict[str, Any]] = [
            {"params": block, "lr": train.lr * 0.1, "weight_decay": train.weight_decay},
            {"params": rest, "weight_decay": train.weight_decay},
        ]
        return {"main": sgd(groups, train)}

    @classmethod
    def reference_config(cls, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """The published implementation's names for these settings."""
        start, end = settings["teacher_temp"]
        args = settings["args"]
        return {
            "alpha": args["cross_weight"],
            "beta": args["dw"],
            "entropy_weight": args["memax"],
            "reg_temp": args["fc_temp"],
            "aux_ce_temp": args["fc_temp"],
            "teacher_temp_start": start,
            "teacher_temp_end": end,
            "teacher_temp_epochs": settings["warmup_epochs"],
        }

    def reference_names(self) -> dict[str, str]:
        """Names in the published implementation."""
        return {
            "backbone.Prompt_Token": "aux_token",
            "head.last_layer.weight_v": "main_head.weight",
            "aux_fc.weight": "aux_head.weight",
        }


def _present_classes(logits: Tensor, rows: Tensor, batch: Batch) -> Tensor:
    """(K,) 1 for each class among the hard labels (the true one of labelled rows) of either view's rows."""
    hard = logits.detach().argmax(1).view(2, -1)
    hard = torch.where(batch.labelled, batch.target, hard)
    present = torch.zeros(logits.shape[1], device=logits.device)
    for view in hard:
        present = present.scatter_reduce(0, view, rows.to(present.dtype), "amax")
    return present
