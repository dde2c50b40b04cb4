"""k-means on the features of the untrained backbone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gcdbench.clustering import kmeans
from gcdbench.contracts import Batch, Losses, Method, Pool, Prediction, Progress, Stage, Task, Traits
from gcdbench.errors import UsageError
from gcdbench.predicting import cls_embedding, predict_by_clusters


@dataclass(frozen=True)
class KMeansConfig:
    """Settings of the clustering."""

    restarts: int = 10
    """Starts of k-means, of which the best is taken; the number that was usual when the published ones were made."""
    iterations: int = 300
    """Iterations of each start at most."""

    def __post_init__(self) -> None:
        if min(self.restarts, self.iterations) < 1:
            raise UsageError("method.restarts and method.iterations must be at least 1.")


class KMeans(Method):
    """Clusters the normalised CLS tokens of the query rows alone; labels only name the clusters afterwards."""

    Config: ClassVar[type] = KMeansConfig
    traits: ClassVar[Traits] = Traits(inductive=False)
    recipes: ClassVar[tuple[str, ...]] = ("paper",)

    def __init__(self, config: KMeansConfig, task: Task) -> None:
        super().__init__(config, task)
        self.tail = task.backbone.tail(norm=True)
        self.tail.requires_grad_(False)

    def stages(self) -> Sequence[Stage]:
        """Nothing is trained."""
        return ()

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """Never called: there is no stage."""
        raise NotImplementedError("k-means is not trained")

    def features(self, tokens: Tensor) -> Tensor:
        """CLS of the backbone."""
        return self.tail(tokens)[:, 0]

    def predict(self, pool: Pool) -> Prediction:
        """The cluster of each query row."""
        c: KMeansConfig = self.config
        embed = cls_embedding(self.tail)
        features = pool.features(embed)
        places = pool.query_places
        rows = pool.queries.features(embed) if places is None else features[torch.from_numpy(places)]
        clusters = kmeans(rows, self.task.num_classes, pool.generator(), restarts=c.restarts, iterations=c.iterations)
        labels = np.asarray(torch.cdist(features, clusters.centres).argmin(1).cpu())
        if places is not None:
            labels[places] = clusters.labels.cpu().numpy()
        return predict_by_clusters(pool, embed, features, labels, self.task.num_base)
