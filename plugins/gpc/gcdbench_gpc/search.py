"""One round of clustering, splits and merges: what an epoch begins with, and what the estimator repeats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gcdbench_gpc.niw import Floats, Prior
from gcdbench_gpc.prototypes import Ints, Rules, by_two_means, cluster, coins_from, split_and_merge


@dataclass(frozen=True)
class Search:
    """Settings of a round."""

    rules: Rules
    prior_scale: float
    restarts: int
    iterations: int


def one_round(rows: Tensor, target: Ints, clusters: int, generator: torch.Generator, search: Search) -> Floats:
    """Centres after one round that begins with this many clusters."""
    found = cluster(rows, target, clusters, generator, restarts=search.restarts, iterations=search.iterations)
    prior = Prior(found.rows.mean(0), search.prior_scale)
    halves = by_two_means(generator, search.restarts)
    return split_and_merge(found, prior, halves, coins_from(generator), search.rules)[0]


def within(clusters: int, target: Ints, smallest: int, largest: int) -> int:
    """A number of clusters that the rows can fill."""
    classes = int(target.max(initial=-1)) + 1
    room = classes + int((target < 0).sum())
    return int(np.clip(clusters, max(1, smallest), max(1, min(largest, room))))
