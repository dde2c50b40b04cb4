"""GCD's estimate of the number of classes: that with which k-means agrees best with the labels it was not shown."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import minimize_scalar

from gcdbench import KEstimate, KEstimator, Pool, Task
from gcdbench.toolbox.cluster_accuracy import v2
from gcdbench.toolbox.kmeans import kmeans
from gcdbench.toolbox.predicting import cls_embedding

RESTARTS = 10
"""Starts of k-means; fixed, because the default of the library that was used first has changed."""


class MaxAcc(KEstimator):
    """Plain k-means over labelled and unlabelled rows; accuracy of the labelled ones; Brent's bounded search."""

    name: ClassVar[str] = "max-acc"
    version: ClassVar[int] = 2

    def estimate(self, pool: Pool, task: Task, largest: int) -> KEstimate:
        """The number of clusters, of those that the search tried, with the highest accuracy; the smaller of equals."""
        tail = task.backbone.tail(norm=True).eval()
        features = pool.features(cls_embedding(tail))
        known = torch.from_numpy(np.flatnonzero(pool.labelled))
        target = pool.target[pool.labelled]
        tried: dict[int, float] = {}

        def accuracy(k: int) -> float:
            if k not in tried:
                labels = kmeans(features, k, pool.generator(), restarts=RESTARTS, iterations=300).labels
                tried[k] = v2(target, labels[known.to(labels.device)].cpu().numpy(), task.num_base).all
            return tried[k]

        if task.num_base == largest:
            accuracy(largest)
        else:
            minimize_scalar(lambda k: -accuracy(int(k)), bounds=(task.num_base, largest), method="bounded")
        best = min(tried, key=lambda k: (-tried[k], k))
        return KEstimate(best, tried)
