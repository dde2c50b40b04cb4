"""Everything a method will be asked for, tried in the first seconds on a throw-away copy: what fails, fails now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcdbench.contracts import Batch, IntArray, Progress, Stage
from gcdbench.engine import checkpoint
from gcdbench.engine.faults import plugin_call
from gcdbench.engine.feed import batches, first_plans
from gcdbench.engine.lane import Lane
from gcdbench.engine.pool import ImagePool
from gcdbench.engine.scoring import predict
from gcdbench.engine.seeding import fenced_rng, generator
from gcdbench.engine.stages import stages_of
from gcdbench.engine.workspace import Workspace
from gcdbench.errors import PluginError

STEPS = 2
FEW = 64
"""Rows of the pool that the method is shown, or two per class if those are more."""
FILE = "checkpoint/rehearsal.pt"


class Rehearsal:
    """Tries runs that see the same batches; the trunk passes are made once for all of them."""

    def __init__(self, space: Workspace) -> None:
        self._batches: dict[str, list[Batch]] = {}
        self._tokens = _FewTokens(space)

    def of(self, space: Workspace, folder: Path) -> None:
        """Two steps of every stage, `on_epoch_start` and `predict` on a few rows, a checkpoint written and read."""
        with fenced_rng(space.config.seed, "rehearsal"):
            lane = Lane(space.config.method, space.method(), space.compute)
            for stage in stages_of(space, lane.method):
                if stage.epochs:
                    self._stage(space, lane, stage)
            predict(space, lane.method, space.config.eval.rows, self._pool(space))
            self._round_trip(lane, folder)

    def _stage(self, space: Workspace, lane: Lane, stage: Stage) -> None:
        random = generator(space.config.seed, "rehearsal", stage.name, device=space.compute.device)
        t = Progress(stage.name, 0, stage.epochs, 0, space.sampler.steps, random)
        lane.start_stage(stage)
        lane.start_epoch(t)
        lane.method.eval()
        with torch.no_grad(), plugin_call(lane.name, "on_epoch_start"):
            lane.method.on_epoch_start(self._pool(space), t)
        lane.method.train()
        if stage.name not in self._batches:
            self._batches[stage.name] = [b for _, b in batches(space, first_plans(space, stage, STEPS))]
        for number, batch in enumerate(self._batches[stage.name]):
            lane.step(_copy(batch), Progress(stage.name, 0, stage.epochs, number, space.sampler.steps, random))
        lane.means()
        lane.require_finite(STEPS - 1)

    def _pool(self, space: Workspace) -> ImagePool:
        """A few rows: some labelled ones of every base class, and unlabelled ones from the whole set."""
        split, rows = space.data.split, space.config.eval.rows
        count = max(FEW, 2 * space.k)
        order = np.argsort(split.target[split.labelled], kind="stable")
        labelled = _spread(split.labelled[order], count // 2)
        hidden = _spread(split.unlabelled, count - len(labelled))
        scored = hidden if rows == "unlabelled" else _spread(space.scored_rows(rows), count)
        index = np.sort(np.concatenate([labelled, hidden]))
        known = np.isin(index, labelled)
        size, nothing = space.config.eval.batch_size, np.zeros(len(scored), dtype=bool)
        part = "train" if rows == "unlabelled" else "test"
        queries = ImagePool(self._tokens, part, scored, np.full(len(scored), -1), nothing, size)
        random = generator(space.config.seed, "rehearsal", "pool")
        return ImagePool(self._tokens, "train", index, split.target[index], known, size, queries, random)

    def _round_trip(self, lane: Lane, folder: Path) -> None:
        """What a checkpoint will hold must survive being written and read."""
        path, before = folder / FILE, lane.state()
        try:
            with plugin_call(lane.name, "state_dict", passes=(OSError,)):
                checkpoint.write(path, before)
            lane.restore(checkpoint.read(path, lane.compute.device))
        finally:
            path.unlink(missing_ok=True)
        changed = _difference(before, lane.state())
        if changed is not None:
            raise PluginError(f"The state of '{lane.name}' does not survive a checkpoint: {changed} changes.")


class _FewTokens:
    """Trunk tokens of the few rows, computed once; what a pool asks of a `TokenSource`."""

    def __init__(self, space: Workspace) -> None:
        self.compute = space.compute
        self._source = space.source
        self._kept: dict[tuple[str, bytes], list[Tensor]] = {}

    def centre(self, part: str, rows: IntArray, batch: int, sparse: bool = False) -> Iterator[Tensor]:
        """As `TokenSource.centre`."""
        key = (part, rows.tobytes())
        if key not in self._kept:
            self._kept[key] = list(self._source.centre(part, rows, batch, sparse=True))
        yield from (tokens.clone() for tokens in self._kept[key])

    def random(self, part: str, rows: IntArray, batch: int, random: torch.Generator) -> Iterator[Tensor]:
        """As `TokenSource.random`."""
        return self._source.random(part, rows, batch, random)


def _spread(rows: IntArray, count: int) -> IntArray:
    """So many rows, evenly spaced."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64))] if len(rows) else rows


def _copy(batch: Batch) -> Batch:
    """A method that writes into its batch is caught in training; here it must not spoil the others' rehearsal."""
    return Batch(
        batch.tokens.clone(), batch.target.clone(), batch.labelled.clone(), batch.index.clone(), views=batch.views
    )


def _difference(one: Any, two: Any, where: str = "state") -> str | None:
    """Where two nested states differ first; None if they are equal."""
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        same = one.shape == two.shape and one.dtype == two.dtype and bool(torch.equal(one, two.to(one.device)))
        return None if same or bool(one.is_floating_point() and one.isnan().any()) else where
    if isinstance(one, dict) and isinstance(two, dict):
        if one.keys() != two.keys():
            return where
        return next((d for k in one if (d := _difference(one[k], two[k], f"{where}.{k}"))), None)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        if len(one) != len(two):
            return where
        pairs = enumerate(zip(one, two, strict=True))
        return next((d for i, (a, b) in pairs if (d := _difference(a, b, f"{where}.{i}"))), None)
    if isinstance(one, np.ndarray):
        return None if np.array_equal(one, two) else where
    return None if one == two else where
