"""k-means on the features of the untrained backbone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gcdbench import Batch, Losses, Method, Pool, Prediction, Progress, Stage, Task, Traits
from gcdbench.errors import UsageError
from gcdbench.toolbox.kmeans import kmeans
from gcdbench.toolbox.predicting import cls_embedding, cluster_numbers, nearest


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
    """k-means on the features of the untrained backbone.

    Clusters the normalised CLS tokens of the query rows alone; labels only name the clusters afterwards.
    """

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
        found: Tensor = self.tail(tokens)[:, 0]
        return found

    def predict(self, pool: Pool) -> Prediction:
        """The cluster of each query row."""
        return cluster_queries(pool, cls_embedding(self.tail), self.config, self.task)


def cluster_queries(pool: Pool, embed: Callable[[Tensor], Tensor], config: KMeansConfig, task: Task) -> Prediction:
    """k-means over the query rows alone; labelled rows only tell which cluster stands for which base class."""
    num_base, classes = task.num_base, task.num_classes
    rows = pool.queries.features(embed)

    def clusters() -> list[Tensor]:
        found = kmeans(rows, classes, pool.generator(), restarts=config.restarts, iterations=config.iterations)
        return [found.labels.cpu(), found.centres.cpu()]

    numbers, centres = pool.once(clusters)
    labels, centres = numbers.numpy(), centres.to(rows.device)
    known = pool.features(embed)[torch.from_numpy(pool.labelled)]
    everybody = np.concatenate([labels, nearest(known, centres)])
    target = np.concatenate([np.full(len(labels), -1), pool.target[pool.labelled]])
    number = cluster_numbers(everybody, target, num_base, classes)
    base_centres = centres[torch.from_numpy(np.argsort(number)[:num_base])]
    return Prediction(number[labels], base={"main": nearest(rows, base_centres)})
