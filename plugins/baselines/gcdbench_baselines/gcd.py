"""GCD (Vaze, Han, Vedaldi, Zisserman; CVPR 2022): contrastive training, then semi-supervised k-means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gcdbench import Batch, Losses, Method, Optim, Pool, Prediction, Progress, Stage, Task, Traits
from gcdbench.errors import UsageError
from gcdbench.toolbox.heads import ContrastiveHead
from gcdbench.toolbox.losses import info_nce, supervised_contrastive
from gcdbench.toolbox.optim import sgd_on
from gcdbench.toolbox.predicting import cls_embedding
from gcdbench_baselines.contrastive import ClusteringConfig, predict_by_kmeans
from gcdbench_baselines.kmeans import KMeansConfig, cluster_queries


@dataclass(frozen=True)
class GCDConfig(ClusteringConfig):
    """Settings of GCD."""

    sup_weight: float = 0.35
    """lambda: share of the supervised contrastive loss; InfoNCE has the rest."""
    info_nce_temp: float = 1.0
    """Temperature of InfoNCE over all rows."""
    supcon_temp: float = 0.07
    """Temperature of the supervised contrastive loss over labelled rows."""
    head_hidden: int = 2048
    """Width of the head's hidden layers."""
    head_narrow: int = 256
    """Width of the head's narrow layer."""
    head_out: int = 65536
    """Number of the head's outputs, on which the losses act."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.info_nce_temp, self.supcon_temp) <= 0:
            raise UsageError("method.info_nce_temp and method.supcon_temp must be positive.")
        if min(self.head_hidden, self.head_narrow, self.head_out) < 1:
            raise UsageError("The widths method.head_hidden, head_narrow and head_out must be at least 1.")
        if not 0 <= self.sup_weight <= 1:
            raise UsageError(f"method.sup_weight is {self.sup_weight}; it must lie between 0 and 1.")


class GCD(Method):
    """Generalized Category Discovery (Vaze et al., CVPR 2022): contrastive training, semi-supervised k-means.

    CLS after the (frozen) final norm; losses on DINO's head; clusters of the backbone's features.
    """

    Config: ClassVar[type] = GCDConfig
    traits: ClassVar[Traits] = Traits(inductive=False)
    recipes: ClassVar[tuple[str, ...]] = ("paper",)

    def __init__(self, config: GCDConfig, task: Task) -> None:
        super().__init__(config, task)
        self.tail = task.backbone.tail(norm=True)
        widths = (config.head_hidden, config.head_narrow, config.head_out)
        self.head = ContrastiveHead(task.backbone.embed_dim, *widths, task.generator)

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """InfoNCE over all rows and the supervised contrastive loss over labelled ones."""
        c: GCDConfig = self.config
        projection = self.head(self.tail(batch.tokens)[:, 0])
        losses = Losses()
        losses.add("info_nce", info_nce(projection, c.info_nce_temp), 1 - c.sup_weight)
        supcon = supervised_contrastive(projection, batch.target, batch.labelled, c.supcon_temp)
        losses.add("supcon", supcon, c.sup_weight)
        return losses

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """SGD over one group: everything is decayed, biases too."""
        return {"main": sgd_on((p for _, p in self.trained_parameters()), self.task.train)}

    def features(self, tokens: Tensor) -> Tensor:
        """CLS, which is clustered."""
        found: Tensor = self.tail(tokens)[:, 0]
        return found

    def predict(self, pool: Pool) -> Prediction:
        """Semi-supervised k-means over all rows; rows of the test part by plain k-means among themselves."""
        embed = cls_embedding(self.tail)
        # The authors score the test set, by which they choose the epoch, by k-means among its rows; where these are too
        # few for that, they go to the clusters of the training rows.
        if pool.query_places is None and len(pool.queries) >= self.task.num_classes:
            return cluster_queries(pool, embed, KMeansConfig(), self.task)
        return predict_by_kmeans(pool, embed, self.config, self.task.num_base, self.task.num_classes)

    @classmethod
    def reference_config(cls, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """The widths of the recorded head."""
        return ContrastiveHead.reference_widths(shapes)

    def reference_names(self) -> dict[str, str]:
        """Names in the published implementation."""
        return ContrastiveHead.reference_names("head")
