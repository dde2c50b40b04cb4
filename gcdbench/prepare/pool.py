"""Pools: whole sets of rows as methods see them. Hidden labels are -1 from the start, and the order says nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcdbench.contracts import IntArray
from gcdbench.errors import UsageError
from gcdbench.prepare.opened_data import OpenedData
from gcdbench.system.device import Compute
from gcdbench.system.parallel.communicator import ALONE, Communicator
from gcdbench.system.seeding import generator


class Tokens(Protocol):
    """What a pool asks of a `TokenSource`."""

    @property
    def compute(self) -> Compute:
        """Device and precision."""
        ...

    def centre(self, part: str, rows: IntArray, batch: int, sparse: bool = False) -> Iterator[Tensor]:
        """Tokens of the centre view of increasing rows."""
        ...

    def random(
        self, part: str, rows: IntArray, batch: int, random: torch.Generator, turn: int, wanted: range
    ) -> Iterator[Tensor]:
        """Tokens of one random view of each row, of the batches with these numbers; another in each turn."""
        ...


@dataclass(frozen=True)
class PoolRows:
    """Rows of a part by their numbers, with the labels that may be seen."""

    part: str
    index: IntArray
    target: IntArray
    labelled: NDArray[np.bool_]
    """Whose target is shown."""

    @staticmethod
    def unlabelled(part: str, index: IntArray) -> PoolRows:
        """Rows whose labels are hidden from everybody."""
        return PoolRows(part, index, np.full(len(index), -1, dtype=np.int64), np.zeros(len(index), dtype=bool))


@dataclass(frozen=True)
class PoolOptions:
    """How a pool works."""

    batch_size: int
    seed: int = 0
    """Of its random numbers."""
    sparse: bool = False
    """Only a few rows of a large part are wanted."""
    ranks: Communicator = ALONE
    """They share the work, and all of them must ask for the same."""


class ImagePool:
    """Rows of one part of a dataset, with labels only where they are given."""

    def __init__(self, rows: PoolRows, source: Tokens, how: PoolOptions, queries: ImagePool | None = None) -> None:
        """``queries`` are the rows to be predicted; None: all of these."""
        self.index = rows.index
        self.target = np.where(rows.labelled, rows.target, -1)
        self.labelled = rows.labelled
        self._source = source
        self._part = rows.part
        self._batch_size = how.batch_size
        self._queries = queries
        self._seed = how.seed
        self._random = torch.Generator().manual_seed(how.seed)
        self._turns = itertools.count()
        self._sparse = how.sparse
        self._ranks = how.ranks

    def __len__(self) -> int:
        return len(self.index)

    @property
    def queries(self) -> ImagePool:
        """The rows that must be predicted."""
        return self if self._queries is None else self._queries

    @property
    def query_places(self) -> IntArray | None:
        """Where in this pool each query row stands."""
        if self.queries._part != self._part:
            return None
        order = np.argsort(self.index, kind="stable")
        return order[np.searchsorted(self.index, self.queries.index, sorter=order)]

    def generator(self) -> torch.Generator:
        """Random numbers for clustering."""
        return generator(self._seed, "clustering")

    @torch.no_grad()
    def features(self, embed: Callable[[Tensor], Tensor], views: str = "test") -> Tensor:
        """``embed`` of every row's tokens, in row order, on the training device."""
        if views not in ("test", "train"):
            raise UsageError(f"Pool.features takes views='test' or 'train', not '{views}'.")
        if views == "train":
            first, last = self._share(len(self.index))
            batches = range(first // self._batch_size, -(-last // self._batch_size))
            turn = next(self._turns)
            tokens = self._source.random(self._part, self.index, self._batch_size, self._random, turn, batches)
            return self._embedded(embed, tokens)
        rows, position = np.unique(self.index, return_inverse=True)
        first, last = self._share(len(rows))
        own = rows[first:last]
        tokens = self._source.centre(self._part, own, self._batch_size, self._sparse) if len(own) else iter(())
        found = self._embedded(embed, tokens)
        in_order = len(rows) == len(self.index) and bool((position[1:] > position[:-1]).all())
        return found if in_order else found[torch.from_numpy(position).to(found.device)]

    def once(self, action: Callable[[], Any]) -> Any:
        """What the first rank finds, on all ranks."""
        return self._ranks.from_first(action)

    def _share(self, rows: int) -> tuple[int, int]:
        """First and last row of this rank: whole batches, so that each is embedded as one process would do it."""
        batches = -(-rows // self._batch_size)
        first, last = (batches * r // self._ranks.size for r in (self._ranks.rank, self._ranks.rank + 1))
        return min(rows, first * self._batch_size), min(rows, last * self._batch_size)

    def _embedded(self, embed: Callable[[Tensor], Tensor], stream: Iterable[Tensor]) -> Tensor:
        parts: list[Tensor] = []
        for tokens in stream:
            with self._source.compute.autocast():
                parts.append(embed(tokens))
        return self._ranks.concatenate(torch.cat(parts) if parts else None)


def training_pool(data: OpenedData, source: Tokens, how: PoolOptions, rows: str | None = None) -> ImagePool:
    """All training rows; the queries are the rows to be predicted (`unlabelled` or `test`), or all of them."""
    split, queries = data.numbered, None
    if rows is not None:
        part, asked = "train", split.unlabelled
        if rows == "test":
            part, asked = "test", np.arange(len(data.order["test"]), dtype=np.int64)
        queries = ImagePool(PoolRows.unlabelled(part, asked), source, how)
    everything = np.arange(len(split.target), dtype=np.int64)
    return ImagePool(PoolRows("train", everything, split.target, split.is_labelled), source, how, queries)
