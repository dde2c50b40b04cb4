"""ORCA: a classifier over all classes, pairwise pseudo-labels, and a margin that follows the model's uncertainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gcdbench import Batch, Losses, Method, Optim, Pool, Prediction, Progress, Stage, Task, Traits
from gcdbench.errors import UsageError
from gcdbench.toolbox.heads import CosineClassifier
from gcdbench.toolbox.optim import StepsPerEpoch, sgd_on
from gcdbench.toolbox.predicting import predict_by_logits
from gcdbench.toolbox.regularisers import RegulariserSlot, regularise
from gcdbench_orca.losses import margin_cross_entropy, negative_entropy, pair_agreement, partners


@dataclass(frozen=True)
class ORCAConfig(RegulariserSlot):
    """Settings of ORCA."""

    scale: float = 10.0
    """Scale of the cosines: the inverse of a temperature."""
    largest_margin: float = 0.5
    """The margin is the uncertainty, at most this."""
    pair_weight: float = 1.0
    """Weight of the agreement of paired rows."""
    entropy_weight: float = 1.0
    """Weight of the entropy of the mean distribution."""
    milestones: tuple[float, ...] = (0.7, 0.9)
    """Shares of training after which the learning rate falls to a tenth (140 and 180 of 200 epochs)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale <= 0:
            raise UsageError(f"method.scale is {self.scale}; it must be positive.")
        if not all(0 <= share <= 1 for share in self.milestones):
            raise UsageError("method.milestones are shares of training, from 0 to 1.")


class ORCA(Method):
    """Open-world semi-supervised learning (Cao, Brbic, Leskovec; ICLR 2022) on a ViT."""

    Config: ClassVar[type] = ORCAConfig
    traits: ClassVar[Traits] = Traits(sampler="paired")
    recipes: ClassVar[tuple[str, ...]] = ("adapted",)
    margin: Tensor

    def __init__(self, config: ORCAConfig, task: Task) -> None:
        super().__init__(config, task)
        self.tail = task.backbone.tail(norm=True)
        self.classifier = CosineClassifier(task.backbone.embed_dim, task.num_classes, task.generator, start="unit")
        self.register_buffer("margin", torch.zeros(()))

    def on_epoch_start(self, pool: Pool, t: Progress) -> None:
        """The margin of the epoch: the mean uncertainty of the unlabelled rows, at most `largest_margin`."""
        confidence = pool.features(self._confidence)
        hidden = torch.from_numpy(~pool.labelled).to(confidence.device)
        weight = hidden.to(confidence.dtype)
        uncertainty = 1 - (confidence * weight).sum() / weight.sum().clamp(min=1)
        self.margin.copy_(uncertainty.clamp(max=self.config.largest_margin))

    def _confidence(self, tokens: Tensor) -> Tensor:
        """(rows,) largest probability."""
        found: Tensor = (self.classifier(self.tail(tokens)[:, 0]) * self.config.scale).softmax(1).amax(1)
        return found

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """Margin cross entropy, agreement of pairs, entropy of the mean."""
        c: ORCAConfig = self.config
        cls = self.tail(batch.tokens)[:, 0]
        cosines = self.classifier(cls)
        p1, p2 = (cosines * c.scale).softmax(1).chunk(2)
        first = cls.chunk(2)[0]
        pairs = partners(first, batch.target, batch.labelled, t.generator)
        losses = Losses()
        ce = margin_cross_entropy(cosines.chunk(2)[0], batch.target, batch.labelled, self.margin, c.scale)
        losses.add("ce", ce)
        losses.add("pairs", pair_agreement(p1, p2, pairs), c.pair_weight)
        losses.add("neg_entropy", negative_entropy(p1), c.entropy_weight)
        regularise(losses, c, cosines)
        return losses

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """SGD over one group, everything decayed; the rate falls in steps."""
        optim = sgd_on((p for _, p in self.trained_parameters()), self.task.train)
        return {"main": Optim(optim.optimizer, StepsPerEpoch(self.config.milestones))}

    def logits(self, tokens: Tensor) -> dict[str, Tensor]:
        """Class cosines."""
        return {"main": self.classifier(self.tail(tokens)[:, 0])}

    def features(self, tokens: Tensor) -> Tensor:
        """CLS."""
        found: Tensor = self.tail(tokens)[:, 0]
        return found

    def predict(self, pool: Pool) -> Prediction:
        """Argmax over all classes."""
        return predict_by_logits(pool, self.logits, self.task.num_base, 1 / self.config.scale)

    @classmethod
    def reference_config(cls, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """The recorded shares of training after which the rate falls."""
        return {"milestones": tuple(settings["args"]["milestones"])}

    def reference_names(self) -> dict[str, str]:
        """Names in the published implementation."""
        return {"linear.weight": "classifier.weight"}
