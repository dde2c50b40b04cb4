"""SimGCD: a prototype classifier trained by self-distillation, with mean-entropy maximisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gcdbench import Batch, Losses, Method, Pool, Prediction, Progress, Task, Traits
from gcdbench.errors import UsageError
from gcdbench.toolbox.heads import CosineClassifier, Projector
from gcdbench.toolbox.losses import (
    cross_entropy,
    info_nce,
    negative_mean_entropy,
    self_distillation,
    supervised_contrastive,
)
from gcdbench.toolbox.predicting import predict_by_logits
from gcdbench.toolbox.regularisers import RegulariserSlot, regularise
from gcdbench.toolbox.schedules import warm_down


@dataclass(frozen=True)
class SimGCDConfig(RegulariserSlot):
    """Settings of SimGCD."""

    sup_weight: float = 0.35
    """Balance between supervised terms (this) and unsupervised terms (one minus this)."""
    entropy_weight: float = 1.0
    """Weight of mean-entropy maximisation; the authors choose it per dataset."""
    student_temp: float = 0.1
    """Temperature of the student's distribution, also of the supervised cross entropy."""
    teacher_temp_start: float = 0.07
    """Temperature of the teacher's distribution in the first epoch."""
    teacher_temp_end: float = 0.04
    """Temperature of the teacher's distribution after the warm-up."""
    teacher_temp_epochs: int = 30
    """Epochs over which the teacher temperature falls linearly."""
    supcon_temp: float = 0.07
    """Temperature of the supervised contrastive loss."""
    info_nce_temp: float = 1.0
    """Temperature of the self-supervised contrastive loss."""
    projector_hidden: int = 2048
    """Width of the projector's hidden layers."""
    projector_out: int = 256
    """Width of the projector's output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("student_temp", "teacher_temp_start", "teacher_temp_end", "supcon_temp", "info_nce_temp"):
            if getattr(self, name) <= 0:
                raise UsageError(f"method.{name} is {getattr(self, name)}; a temperature must be positive.")
        if min(self.projector_hidden, self.projector_out) < 1:
            raise UsageError("method.projector_hidden and method.projector_out must be at least 1.")
        if not 0 <= self.sup_weight <= 1:
            raise UsageError(f"method.sup_weight is {self.sup_weight}; it must lie between 0 and 1.")


class SimGCD(Method):
    """SimGCD, the parametric baseline (Wen, Zhao, Qi; ICCV 2023).

    CLS after the (frozen) final norm, cosine prototypes, an MLP projector.
    """

    Config: ClassVar[type] = SimGCDConfig
    traits: ClassVar[Traits] = Traits()
    recipes: ClassVar[tuple[str, ...]] = ("paper",)

    def __init__(self, config: SimGCDConfig, task: Task) -> None:
        super().__init__(config, task)
        dim = task.backbone.embed_dim
        self.tail = task.backbone.tail(norm=True)
        self.projector = Projector(dim, config.projector_hidden, config.projector_out, task.generator)
        self.classifier = CosineClassifier(dim, task.num_classes, task.generator)

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """All five terms, weighted."""
        return self.terms(batch, t)[0]

    def config_at(self, t: Progress) -> SimGCDConfig:
        """The settings that hold now, for methods with further stages."""
        config: SimGCDConfig = self.config
        return config

    def terms(self, batch: Batch, t: Progress) -> tuple[Losses, Tensor]:
        """The terms and the logits of both views, for methods that add to them."""
        c = self.config_at(t)
        cls = self.tail(batch.tokens)[:, 0]
        projection = self.projector(cls)
        logits = self.classifier(cls)
        target, labelled = batch.target, batch.labelled
        teacher = warm_down(c.teacher_temp_start, c.teacher_temp_end, c.teacher_temp_epochs, t.epoch)
        unsup = 1 - c.sup_weight
        losses = Losses()
        losses.add(
            "ce",
            cross_entropy(logits, target.repeat(2), labelled.repeat(2), c.student_temp),
            c.sup_weight,
        )
        losses.add("self", self_distillation(logits, c.student_temp, teacher).mean(), unsup)
        losses.add("neg_entropy", negative_mean_entropy(logits, c.student_temp), unsup * c.entropy_weight)
        losses.add("info_nce", info_nce(projection, c.info_nce_temp), unsup)
        losses.add("supcon", supervised_contrastive(projection, target, labelled, c.supcon_temp), c.sup_weight)
        regularise(losses, c, logits)
        return losses, logits

    def logits(self, tokens: Tensor) -> dict[str, Tensor]:
        """Class cosines of the main head."""
        return {"main": self.classifier(self.tail(tokens)[:, 0])}

    def features(self, tokens: Tensor) -> Tensor:
        """CLS, as the main head sees it."""
        found: Tensor = self.tail(tokens)[:, 0]
        return found

    def predict(self, pool: Pool) -> Prediction:
        """Argmax over all classes."""
        return predict_by_logits(pool, self.logits, self.task.num_base, self.config.student_temp)

    @classmethod
    def reference_config(cls, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """The published implementation's names for these settings."""
        start, end = settings["teacher_temp"]
        return {
            "entropy_weight": settings["args"]["memax"],
            "teacher_temp_start": start,
            "teacher_temp_end": end,
            "teacher_temp_epochs": settings["warmup_epochs"],
            "projector_hidden": shapes["head.mlp.0.weight"][0],
            "projector_out": shapes["head.mlp.4.weight"][0],
        }

    def reference_names(self) -> dict[str, str]:
        """Names in the published implementation."""
        layers = {f"head.mlp.{i}.{kind}": f"projector.{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias")}
        return {"head.last_layer.weight_v": "classifier.weight", **layers}
