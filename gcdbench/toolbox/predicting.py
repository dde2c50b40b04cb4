"""Predictions: by argmax, for methods with a classifier over all classes, and by clusters of the whole pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gcdbench.contracts import IntArray, Pool, Prediction
from gcdbench.toolbox.kmeans import BLOCK_BYTES, cluster_means
from gcdbench.toolbox.losses import wide


def predict_by_logits(
    pool: Pool,
    logits: Callable[[Tensor], Mapping[str, Tensor]],
    num_base: int,
    temperature: float,
    main: str = "main",
) -> Prediction:
    """The most probable class of each query row.

    ``logits`` maps trunk tokens to logits per branch; every branch's first ``num_base`` columns are the base
    classes. Only four small numbers per row and branch leave the device, never the logits.
    """
    names: list[str] = []

    def embed(tokens: Tensor) -> Tensor:
        branches = logits(tokens)
        names[:] = [main, *(n for n in branches if n != main)]
        all_classes = wide(branches[main])
        best = all_classes.argmax(1)
        confidence = (all_classes / temperature).softmax(1).amax(1)
        base = [branches[n][:, :num_base].argmax(1) for n in names]
        # One float32 table (class numbers are exact in it up to 16 million): a single copy to the host at the end.
        return torch.stack([best.float(), confidence.float(), *(b.float() for b in base)], dim=1)

    table = pool.queries.features(embed).cpu().numpy()
    return Prediction(
        cluster=table[:, 0].astype("int64"),
        confidence=table[:, 1].astype("float32"),
        base={name: table[:, 2 + i].astype("int64") for i, name in enumerate(names)},
    )


def cls_embedding(tail: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Trunk tokens to the tail's CLS, of length one: what GCD methods cluster."""
    return lambda tokens: F.normalize(wide(tail(tokens)[:, 0]), dim=1)


def without_gaps(target: IntArray, num_base: int) -> tuple[IntArray, IntArray]:
    """Classes of labelled rows numbered without a gap (a class may have no labelled row), -1 elsewhere; and the class
    of each of these numbers. Clustering that starts from class means needs this."""
    present = np.unique(target[target >= 0])
    number = np.full(num_base + 1, -1, dtype=np.int64)
    number[present] = np.arange(len(present))
    return number[target], present


def cluster_numbers(labels: IntArray, target: IntArray, num_base: int, clusters: int) -> IntArray:
    """(clusters,) another number for each cluster: 0 to ``num_base`` - 1 for those that agree best with base classes.

    ``target`` is the class of labelled rows and -1 elsewhere. There are at least as many clusters as base classes.
    """
    known = target >= 0
    table = np.zeros((clusters, num_base), dtype=np.int64)
    np.add.at(table, (labels[known], target[known]), 1)
    of_base, base = linear_sum_assignment(table, maximize=True)
    number = np.full(clusters, -1, dtype=np.int64)
    number[of_base] = base
    number[number < 0] = np.arange(num_base, clusters)
    return number


def name_clusters(labels: IntArray, target: IntArray, num_base: int) -> IntArray:
    """The same clusters under other numbers, base classes first. Which rows are together does not change."""
    clusters = max(int(labels.max()) + 1, num_base)
    return cluster_numbers(labels, target, num_base, clusters)[labels]


def predict_by_clusters(
    pool: Pool, embed: Callable[[Tensor], Tensor], features: Tensor, labels: IntArray, num_base: int
) -> Prediction:
    """The cluster of each query row, with the clusters of base classes named as such.

    ``features`` and ``labels`` are those of all rows of the pool. Query rows that are not in the pool go to the
    cluster with the nearest mean, after ``embed``.
    """
    labels = name_clusters(labels, pool.target, num_base)
    clusters = max(int(labels.max()) + 1, num_base)
    numbers = torch.from_numpy(labels).to(features.device)
    means = cluster_means(features.float(), numbers, features.new_zeros((clusters, features.shape[1])).float())
    # The mean of an empty cluster is nowhere, so that no row is near it.
    means[torch.bincount(numbers, minlength=clusters) == 0] = torch.inf
    places = pool.query_places
    if places is None:
        queries = pool.queries.features(embed)
        best = nearest(queries, means)
    else:
        queries = features[torch.from_numpy(places).to(features.device)]
        best = labels[places]
    return Prediction(best, base={"main": nearest(queries, means[:num_base])})


def nearest(rows: Tensor, centres: Tensor) -> IntArray:
    """The number of each row's nearest centre, some rows at a time; infinite centres are no one's."""
    away = ~centres.isfinite().all(1)
    safe = torch.where(away[:, None], 0.0, centres.float())
    size = max(1, BLOCK_BYTES // (4 * max(1, len(centres))))
    found = [torch.cdist(part.float(), safe).masked_fill_(away, torch.inf).argmin(1) for part in rows.split(size)]
    return torch.cat(found).cpu().numpy()
