"""How the rows of training batches are drawn."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gcdbench.contracts import IntArray
from gcdbench.data.splits import Split


class Sampler(Protocol):
    """Draws the batches of an epoch."""

    batch_size: int
    steps: int
    """Batches of an epoch."""

    def __init__(self, split: Split, batch_size: int) -> None: ...

    def epoch(self, random: torch.Generator) -> Tensor:
        """(steps, batch) row numbers."""
        ...


class BalancedSampler:
    """The published protocol: draws with replacement; a labelled row has weight 1, an unlabelled one L/U."""

    def __init__(self, split: Split, batch_size: int) -> None:
        labelled, unlabelled = len(split.labelled), len(split.unlabelled)
        weights = np.zeros(labelled + unlabelled)
        weights[split.labelled] = 1.0
        weights[split.unlabelled] = self.share(labelled, unlabelled) if labelled and unlabelled else 1.0
        self.weights = torch.from_numpy(weights)
        self.batch_size = batch_size
        # An epoch draws as many rows as there are and drops the incomplete batch; a tiny set still gets one step.
        self.steps = max(1, len(weights) // batch_size)

    def share(self, labelled: int, unlabelled: int) -> float:
        """Weight of an unlabelled row."""
        return labelled / unlabelled

    def epoch(self, random: torch.Generator) -> Tensor:
        """(steps, batch) row numbers."""
        drawn = torch.multinomial(self.weights, self.steps * self.batch_size, replacement=True, generator=random)
        return drawn.view(self.steps, self.batch_size)


class MostlyLabelledSampler(BalancedSampler):
    """As the balanced one, but an unlabelled row has weight L/(L+U): more than half of a batch is labelled."""

    def share(self, labelled: int, unlabelled: int) -> float:
        """Weight of an unlabelled row."""
        return labelled / (labelled + unlabelled)


class PairedSampler:
    """Every batch holds labelled rows, then unlabelled ones, in proportion to the sets (at least one of each).

    Both sets are gone through in an order of their own, without replacement; a set too small for all batches of an
    epoch is shuffled again and continues.
    """

    def __init__(self, split: Split, batch_size: int) -> None:
        self.sets = [rows for rows in (split.labelled, split.unlabelled) if len(rows)]
        total = sum(map(len, self.sets))
        self.batch_size = batch_size
        first = batch_size
        if len(self.sets) == 2:
            first = min(max(1, round(batch_size * len(self.sets[0]) / total)), max(1, batch_size - 1))
        self.sizes = [first, batch_size - first][: len(self.sets)]
        self.steps = max(1, total // batch_size)

    def epoch(self, random: torch.Generator) -> Tensor:
        """(steps, batch) row numbers."""
        drawn = [self._some(rows, size, random) for rows, size in zip(self.sets, self.sizes, strict=True)]
        return torch.cat(drawn, dim=1)

    def _some(self, rows: IntArray, size: int, random: torch.Generator) -> Tensor:
        rounds = max(1, math.ceil(self.steps * size / len(rows)))
        order = torch.cat([torch.randperm(len(rows), generator=random) for _ in range(rounds)])
        return torch.from_numpy(rows)[order[: self.steps * size]].view(self.steps, size)


SAMPLERS: dict[str, type[Sampler]] = {
    "balanced": BalancedSampler,
    "mostly-labelled": MostlyLabelledSampler,
    "paired": PairedSampler,
}
"""By the name used in configs."""
