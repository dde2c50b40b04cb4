"""Concepts: groups of similar rows that the map equation finds, their centres, and what rows learn from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.toolbox.kmeans import cluster_means
from gcdbench.toolbox.losses import in_float32, wide
from gcdbench_dccl.config import DCCLConfig
from gcdbench_dccl.graph import Graph, Ints, links, nearest_rows
from gcdbench_dccl.map_equation import Flow, communities

NONE = -1


def find_concepts(
    features: Tensor, target: Ints, config: DCCLConfig, generator: torch.Generator, before: Ints | None = None
) -> Ints:
    """(rows,) concept of each row, -1 where it belongs to none. ``before`` are the concepts of the last epoch."""
    neighbour, distance = nearest_rows(features, config.neighbours)
    graph = links(neighbour, distance, target, config.smallest_similarity, config.label_rule)
    return concepts_of(graph, config.smallest_concept, generator, before)


def concepts_of(graph: Graph, smallest: int, generator: torch.Generator, before: Ints | None = None) -> Ints:
    """Communities of the rows that have links; small ones are none."""
    linked = np.unique(np.concatenate([graph.source, graph.target]))
    found = np.full(graph.rows, NONE, dtype=np.int64)
    if not len(linked):
        return found
    number = np.full(graph.rows, NONE, dtype=np.int64)
    number[linked] = np.arange(len(linked))
    inner = Graph(len(linked), number[graph.source], number[graph.target], graph.weight)
    start = None
    if before is not None:  # rows without a concept begin alone
        start = np.where(before[linked] >= 0, before[linked], graph.rows + np.arange(len(linked)))
    found[linked] = communities(Flow.of(inner), generator, start)
    return without_small(found, smallest)


def without_small(concept: Ints, smallest: int) -> Ints:
    """Groups of fewer rows are none; the others are numbered in order."""
    names, where, counts = np.unique(concept, return_inverse=True, return_counts=True)
    keep = (names >= 0) & (counts >= smallest)
    number = np.full(len(names), NONE, dtype=np.int64)
    number[keep] = np.arange(keep.sum())
    return np.asarray(number[where])


def centres(features: Tensor, concept: Tensor) -> Tensor:
    """(concepts, dim) means of the rows as they are, of length one."""
    count = int(concept.max()) + 1
    number = torch.where(concept >= 0, concept, count)  # those without a concept have one more mean, which is dropped
    return F.normalize(
        cluster_means(features, number, features.new_zeros((count + 1, features.shape[1])))[:count], dim=1
    )


@dataclass(frozen=True)
class Shares:
    """How often rows are drawn, and how often they should be."""

    labelled: int
    unlabelled: int

    def weights(self, concept: Tensor, sizes: Tensor, is_labelled: Tensor) -> Tensor:
        """(rows,) of mean one over the rows that have a concept: with these, batches that draw labelled and unlabelled
        rows equally often stand for batches of equally many rows of each concept."""
        drawn = torch.where(is_labelled, 1 / max(1, 2 * self.labelled), 1 / max(1, 2 * self.unlabelled))
        wanted = 1 / (len(sizes) * sizes[concept.clamp(min=0)].clamp(min=1))
        weight = torch.where(concept >= 0, wanted / drawn, 0.0)
        return weight / (weight.sum() / (concept >= 0).sum().clamp(min=1)).clamp(min=1e-12)


@in_float32
def concept_loss(features: Tensor, memory: Tensor, concept: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Weighted mean cross entropy of rows with their concepts, where they have one; features are normalised here."""
    z = F.normalize(features, dim=1)
    each = F.cross_entropy(z @ memory.T / temperature, concept.clamp(min=0), reduction="none")
    has = (concept >= 0).to(each.dtype)
    return (each * weight * has).sum() / has.sum().clamp(min=1)


@torch.no_grad()
def moved_memory(memory: Tensor, features: Tensor, concept: Tensor, momentum: float) -> Tensor:
    """Centres after one row of features after the other: m <- unit(momentum m + (1 - momentum) z).

    Only the last visits of a concept count: each one leaves at most momentum / (1 - 2 momentum) of what was before.
    So they are made in turns, one visit of every concept at a time.
    """
    z = F.normalize(wide(features), dim=1)
    later = torch.triu(concept[:, None] == concept[None, :], diagonal=1).sum(1)
    kept = torch.cat([memory, memory[:1]])  # one more, to which rows without a turn go
    for turn in reversed(range(_turns(momentum, len(z)))):
        mine = (later == turn) & (concept >= 0)
        place = torch.where(mine, concept, len(memory))
        kept = kept.index_copy(0, place, F.normalize(momentum * kept[place] + (1 - momentum) * z, dim=1))
    return kept[: len(memory)]


def _turns(momentum: float, rows: int) -> int:
    """Visits after which nothing of the beginning is left in float64."""
    if momentum >= 1 / 3:
        return rows
    left = momentum / (1 - 2 * momentum)
    return min(rows, max(1, math.ceil(math.log(1e-17) / math.log(left)))) if left > 0 else 1
