"""Pools: whole sets of rows as methods see them. Hidden labels are -1 from the start."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcdbench.contracts import IntArray
from gcdbench.engine.tokens import TokenSource
from gcdbench.errors import UsageError


class ImagePool:
    """Rows of one part of a dataset, with labels only where they are given."""

    def __init__(
        self,
        source: TokenSource,
        part: str,
        index: IntArray,
        target: IntArray,
        labelled: NDArray[np.bool_],
        batch_size: int,
        queries: ImagePool | None = None,
        random: torch.Generator | None = None,
    ) -> None:
        self.index = index
        self.target = np.where(labelled, target, -1)
        self.labelled = labelled
        self._source = source
        self._part = part
        self._batch_size = batch_size
        self._queries = queries
        self._random = random

    def __len__(self) -> int:
        return len(self.index)

    @property
    def queries(self) -> ImagePool:
        """The rows that must be predicted."""
        return self if self._queries is None else self._queries

    @torch.no_grad()
    def features(self, embed: Callable[[Tensor], Tensor], views: str = "test") -> Tensor:
        """``embed`` of every row's tokens, in row order, on the training device."""
        if views not in ("test", "train"):
            raise UsageError(f"Pool.features takes views='test' or 'train', not '{views}'.")
        random = self._random if views == "train" else None
        rows = torch.from_numpy(self.index)
        parts: list[Tensor] = []
        for tokens in self._source.rows(self._part, rows, self._batch_size, random):
            with self._source.compute.autocast():
                parts.append(embed(tokens))
        return torch.cat(parts)
