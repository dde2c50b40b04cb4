"""What GCD and SupRef share: settings of a contrastive head and of the semi-supervised k-means at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gcdbench import Pool, Prediction
from gcdbench.errors import UsageError
from gcdbench.toolbox.kmeans import semi_supervised_kmeans
from gcdbench.toolbox.predicting import predict_by_clusters, without_gaps


@dataclass(frozen=True)
class ClusteringConfig:
    """Settings of the semi-supervised k-means that makes the prediction."""

    restarts: int = 100
    """Starts of semi-supervised k-means, of which the best is taken."""
    iterations: int = 200
    """Iterations of each start at most."""

    def __post_init__(self) -> None:
        if min(self.restarts, self.iterations) < 1:
            raise UsageError("method.restarts and method.iterations must be at least 1.")


def predict_by_kmeans(
    pool: Pool, embed: Callable[[Tensor], Tensor], config: ClusteringConfig, num_base: int, clusters: int
) -> Prediction:
    """Semi-supervised k-means over labelled and unlabelled rows; the answer for the query rows."""
    features = pool.features(embed)
    # A class without a labelled row has no mean to start from: the others close ranks, and it is found or it is not.
    target = torch.from_numpy(without_gaps(pool.target, num_base)[0])

    def cluster() -> Tensor:
        found = semi_supervised_kmeans(
            features,
            target,
            clusters,
            pool.generator(),
            restarts=config.restarts,
            iterations=config.iterations,
        )
        return found.labels.cpu()

    labels = pool.once(cluster)
    return predict_by_clusters(pool, embed, features, labels.numpy(), num_base)
