"""A few rows of a training set as a small one of their own: batches and a pool whose row numbers fit together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from gcdbench.contracts import Batch, IntArray
from gcdbench.data.views import random_plan
from gcdbench.prepare.pool import ImagePool, PoolOptions, PoolRows
from gcdbench.prepare.run_context import RunContext
from gcdbench.system.seeding import derive, generator

SAMPLE = 64
"""Rows, or somewhat more than there are classes if that is more, so that clusters can be distinguished."""


class SampleRows:
    """Rows are numbered 0, 1, ... as in training, where a pool has all of them: memory banks go by these numbers."""

    def __init__(self, ctx: RunContext) -> None:
        self.compute = ctx.compute
        self._ctx = ctx
        split, rows = ctx.data.numbered, ctx.config.eval.rows
        count = max(SAMPLE, ctx.k + SAMPLE // 2)
        target = split.target[split.labelled]
        each = [split.labelled[target == cls][:2] for cls in range(len(split.base))]
        each.append(_spread(split.labelled, count // 2 - sum(map(len, each))))
        labelled = np.unique(np.concatenate(each))
        # A method may cluster the unlabelled rows alone, so they must be enough for all clusters.
        hidden = _spread(split.unlabelled, max(count - len(labelled), count // 2, ctx.k + SAMPLE // 8))
        self._rows = {"train": np.sort(np.concatenate([labelled, hidden]))}
        self._labelled = np.isin(self._rows["train"], labelled)
        self._target = np.where(self._labelled, split.target[self._rows["train"]], -1)
        self._part = "train" if rows == "unlabelled" else "test"
        self._queries = np.flatnonzero(~self._labelled)
        if self._part == "test":
            self._rows["test"] = np.arange(min(count, len(ctx.scored_rows(rows))))
            self._queries = np.arange(len(self._rows["test"]))
        self._kept: dict[tuple[str, bytes], list[Tensor]] = {}
        self._batches: dict[int, Batch] = {}

    def batch(self, number: int) -> Batch:
        """A batch of the usual size, half of it labelled where there are labels; made once."""
        if number not in self._batches:
            self._batches[number] = self._make(number)
        return self._batches[number]

    def _make(self, number: int) -> Batch:
        ctx, device = self._ctx, self.compute.device
        random = generator(ctx.config.stream_seed, "few rows", number)
        known, hidden = (np.flatnonzero(mask) for mask in (self._labelled, ~self._labelled))
        shares = [rows for rows in (known, hidden) if len(rows)]
        size = ctx.config.train.batch_size
        places = [shares[i % len(shares)][i // len(shares) % len(shares[i % len(shares)])] for i in range(size)]
        index = np.array(places, dtype=np.int64)
        plan = random_plan(torch.from_numpy(self._rows["train"][index]), ctx.config.views, random)
        ((_, tokens),) = ctx.source.stream("train", [plan])
        facts = (self._target[index], self._labelled[index], index)
        target, labelled, rows = (torch.from_numpy(fact).to(device) for fact in facts)
        return Batch(tokens, target, labelled, rows, plan.views)

    def pool(self, seed: int) -> ImagePool:
        """All of the rows; its queries are the ones without a label, or rows of the test part."""
        how = PoolOptions(self._ctx.config.eval.batch_size, derive(seed, "few rows", "pool"))
        queries = ImagePool(PoolRows.unlabelled(self._part, self._queries), self, how)
        everything = np.arange(len(self._target), dtype=np.int64)
        return ImagePool(PoolRows("train", everything, self._target, self._labelled), self, how, queries)

    def centre(self, part: str, rows: IntArray, batch: int, sparse: bool = False) -> Iterator[Tensor]:
        """As `TokenSource.centre`, for the numbers of this sample; computed once."""
        key = (part, rows.tobytes())
        if key not in self._kept:
            real = self._rows[part][rows]
            self._kept[key] = list(self._ctx.source.centre(part, real, batch, sparse=True))
        yield from (tokens.clone() for tokens in self._kept[key])

    def random(
        self, part: str, rows: IntArray, batch: int, random: torch.Generator, turn: int, wanted: range
    ) -> Iterator[Tensor]:
        """As `TokenSource.random`."""
        return self._ctx.source.random(part, self._rows[part][rows], batch, random, turn, wanted)


def _spread(rows: IntArray, count: int) -> IntArray:
    """This many rows, evenly spaced."""
    if not len(rows) or count < 1:
        return rows[:0]
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64))]
