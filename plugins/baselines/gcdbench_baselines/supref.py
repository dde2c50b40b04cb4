"""SupRef, the supervised reference: trained on labelled rows alone, as a classifier over the base classes.

Its oracle base accuracy is what the RLCD paper compares with. To answer for novel rows as well, its features are
clustered by semi-supervised k-means; that part is ours.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gcdbench import Batch, Losses, Method, Pool, Prediction, Progress, Task, Traits
from gcdbench.errors import UsageError
from gcdbench.toolbox.heads import CosineClassifier
from gcdbench.toolbox.losses import cross_entropy, supervised_contrastive
from gcdbench.toolbox.predicting import cls_embedding, predict_by_logits
from gcdbench_baselines.contrastive import ClusteringConfig, predict_by_kmeans


@dataclass(frozen=True)
class SupRefConfig(ClusteringConfig):
    """Settings of SupRef."""

    student_temp: float = 0.1
    """Temperature of the cross entropy."""
    supcon_temp: float = 0.07
    """Temperature of the supervised contrastive loss."""
    supcon_weight: float = 1.0
    """Weight of the supervised contrastive loss beside the cross entropy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.student_temp, self.supcon_temp) <= 0:
            raise UsageError("method.student_temp and method.supcon_temp must be positive.")


class SupRef(Method):
    """Supervised reference: trained on labelled rows only (RLCD's paper).

    CLS after the (frozen) final norm and a cosine classifier over the base classes.
    """

    Config: ClassVar[type] = SupRefConfig
    traits: ClassVar[Traits] = Traits(inductive=False)
    recipes: ClassVar[tuple[str, ...]] = ("default",)

    def __init__(self, config: SupRefConfig, task: Task) -> None:
        super().__init__(config, task)
        self.tail = task.backbone.tail(norm=True)
        self.classifier = CosineClassifier(task.backbone.embed_dim, task.num_base, task.generator)

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """Cross entropy and supervised contrastive loss of the labelled rows."""
        c: SupRefConfig = self.config
        cls = self.tail(batch.tokens)[:, 0]
        labelled = batch.labelled.repeat(2)
        losses = Losses()
        losses.add("ce", cross_entropy(self.classifier(cls), batch.target.repeat(2), labelled, c.student_temp))
        supcon = supervised_contrastive(cls, batch.target, batch.labelled, c.supcon_temp)
        losses.add("supcon", supcon, c.supcon_weight)
        return losses

    def logits(self, tokens: Tensor) -> dict[str, Tensor]:
        """Cosines with the base classes."""
        return {"main": self.classifier(self.tail(tokens)[:, 0])}

    def features(self, tokens: Tensor) -> Tensor:
        """CLS."""
        found: Tensor = self.tail(tokens)[:, 0]
        return found

    def predict(self, pool: Pool) -> Prediction:
        """Clusters of the features; the best base class of each row is the classifier's."""
        base, classes = self.task.num_base, self.task.num_classes
        clusters = predict_by_kmeans(pool, cls_embedding(self.tail), self.config, base, classes)
        answer = predict_by_logits(pool, self.logits, base, self.config.student_temp)
        return dataclasses.replace(clusters, base=answer.base)
