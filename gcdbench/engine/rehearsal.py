"""Everything a method will be asked for, tried in the first seconds on a throw-away copy: what fails, fails now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gcdbench.contracts import Batch, IntArray, Progress, Stage
from gcdbench.engine import checkpoint
from gcdbench.engine.faults import plugin_call
from gcdbench.engine.feed import batches, first_plans
from gcdbench.engine.lane import Lane
from gcdbench.engine.pool import ImagePool
from gcdbench.engine.same import difference
from gcdbench.engine.scoring import predict
from gcdbench.engine.seeding import AmbientStream, fenced_rng, generator
from gcdbench.engine.stages import stages_of
from gcdbench.engine.workspace import Workspace
from gcdbench.errors import GcdbenchError, PluginError, TrainingError

STEPS = 2
FEW = 64
"""Rows of the pool that the method is shown, or two per class if those are more."""
FILE = "checkpoint/.rehearsal.tmp"
_STATE = "what a method keeps from one call to the next must be parameters, buffers or get_extra_state"


@dataclass
class Scene:
    """One run in rehearsal: a throw-away lane and where it stands."""

    space: Workspace
    lane: Lane
    stage: Stage
    folder: Path

    def progress(self, epoch: int, step: int) -> Progress:
        """As in training; random numbers depend on epoch and step only."""
        space, stage = self.space, self.stage
        random = generator(space.config.seed, "rehearsal", stage.name, epoch, step, device=space.compute.device)
        epoch, step = min(epoch, stage.epochs - 1), min(step, space.sampler.steps - 1)
        return Progress(stage.name, epoch, stage.epochs, step, space.sampler.steps, random)

    def start_epoch(self, epoch: int, pool: ImagePool) -> None:
        """Rates and `on_epoch_start`, as before an epoch."""
        t, lane = self.progress(epoch, 0), self.lane
        with AmbientStream(self.space.config.seed, "rehearsal", "epoch", epoch):
            lane.start_epoch(t)
            lane.method.eval()
            with torch.no_grad(), plugin_call(lane.name, "on_epoch_start"):
                lane.method.on_epoch_start(pool, t)
            lane.method.train()

    def step(self, batch: Batch, epoch: int, step: int) -> dict[str, float]:
        """One step; its losses."""
        self.lane.sums = {}
        with AmbientStream(self.space.config.seed, "rehearsal", "step", epoch, step):
            self.lane.step(_copy(batch), self.progress(epoch, step))
        losses = self.lane.means()
        self.lane.require_finite(step)
        return losses

    def restored(self) -> Scene:
        """The same run as another process would find it: a new method, and the state that was written and read."""
        path = self.folder / FILE
        try:
            with plugin_call(self.lane.name, "state_dict", passes=(OSError,)):
                checkpoint.write(path, self.lane.state())
            saved = checkpoint.read(path)
        finally:
            path.unlink(missing_ok=True)
        lane = Lane(self.lane.name, self.space.method(), self.space.compute)
        with AmbientStream(self.space.config.seed, "stage", self.stage.name):
            lane.start_stage(self.stage)
        try:
            lane.restore(saved)
        except (PluginError, TrainingError):  # told already: a hook, or memory
            raise
        except GcdbenchError as fault:
            raise PluginError(
                f"The method '{lane.name}' could not go on from its checkpoint: {fault.__cause__ or fault}; {_STATE}."
            ) from fault
        lane.method.train()
        changed = difference(self.lane.state(), lane.state())
        if changed is not None:
            raise PluginError(f"The state of '{lane.name}' does not survive a checkpoint: {changed} changes.")
        return Scene(self.space, lane, self.stage, self.folder)


class Rehearsal:
    """Tries runs that see the same batches; the trunk passes are made once for all of them."""

    def __init__(self, space: Workspace) -> None:
        self._batches: dict[str, list[Batch]] = {}
        self._tokens = _FewTokens(space)

    def of(self, space: Workspace, folder: Path) -> str | None:
        """Two steps of every stage, `on_epoch_start` and `predict` on a few rows, checkpoints written, read and gone
        on from. A sentence if the run can go on from the end of an epoch, but not from the middle of one."""
        within: str | None = None
        with fenced_rng(space.config.seed, "rehearsal"):
            lane = Lane(space.config.method, space.method(), space.compute)
            for stage in stages_of(space, lane.method):
                if stage.epochs:
                    with AmbientStream(space.config.seed, "stage", stage.name):
                        lane.start_stage(stage)
                    within = self._stage(Scene(space, lane, stage, folder)) or within
            predict(space, lane.method, space.config.eval.rows, self._pool(space))
        return within

    def _stage(self, scene: Scene) -> str | None:
        space, stage = scene.space, scene.stage
        if stage.name not in self._batches:
            self._batches[stage.name] = [b for _, b in batches(space, first_plans(space, stage, STEPS))]
        found = self._batches[stage.name]
        scene.start_epoch(0, self._pool(space))
        for number, batch in enumerate(found):
            scene.step(batch, 0, number)
        within = self._goes_on_within(scene, found[0])
        self._goes_on_after(scene, found[0])
        return within

    def _goes_on_within(self, scene: Scene, batch: Batch) -> str | None:
        """One step more, by the run and by its copy from the checkpoint: why they differ, or None."""
        copy = scene.restored()
        ours = scene.step(batch, 0, STEPS)
        name = scene.lane.name
        only = f"so it is saved at the end of each epoch only: {_STATE}."
        try:
            theirs = copy.step(batch, 0, STEPS)
        except PluginError as fault:
            return f"The method '{name}' cannot go on in the middle of an epoch ({fault}), {only}"
        changed = _unequal(scene, copy, ours, theirs)
        return None if changed is None else f"Continued in the middle of an epoch, '{name}' differs ({changed}), {only}"

    def _goes_on_after(self, scene: Scene, batch: Batch) -> None:
        """The same across the end of an epoch, where a run must be able to go on."""
        copy = scene.restored()
        results = []
        for each in (scene, copy):
            try:
                each.start_epoch(1, self._pool(each.space))
                results.append(each.step(batch, 1, 0))
            except PluginError as fault:
                if each is scene:
                    raise
                raise PluginError(
                    f"The method '{each.lane.name}' could not go on from its checkpoint: {fault}; {_STATE}."
                ) from fault
        changed = _unequal(scene, copy, *results)
        if changed is not None:
            raise PluginError(
                f"Continued from a checkpoint, the method '{scene.lane.name}' does not do what it would have done "
                f"({changed} differs): {_STATE}."
            )

    def _pool(self, space: Workspace) -> ImagePool:
        """A few rows: labelled ones of every base class, and unlabelled ones from the whole set."""
        split, rows = space.data.split, space.config.eval.rows
        count = max(FEW, 2 * space.k)
        target = split.target[split.labelled]
        each = [split.labelled[target == cls][:2] for cls in range(len(split.base))]
        each.append(_spread(split.labelled, count // 2 - sum(map(len, each))))
        labelled = np.unique(np.concatenate(each))
        hidden = _spread(split.unlabelled, max(count - len(labelled), count // 2))
        scored = hidden if rows == "unlabelled" else _spread(space.scored_rows(rows), count)
        index = np.sort(np.concatenate([labelled, hidden]))
        known = np.isin(index, labelled)
        size, nothing = space.config.eval.batch_size, np.zeros(len(scored), dtype=bool)
        part = "train" if rows == "unlabelled" else "test"
        queries = ImagePool(self._tokens, part, scored, np.full(len(scored), -1), nothing, size)
        random = generator(space.config.seed, "rehearsal", "pool")
        return ImagePool(self._tokens, "train", index, split.target[index], known, size, queries, random)


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
    if not len(rows) or count < 1:
        return rows[:0]
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64))]


def _copy(batch: Batch) -> Batch:
    """A method that writes into its batch is caught in training; here it must not spoil the others' rehearsal."""
    return Batch(
        batch.tokens.clone(), batch.target.clone(), batch.labelled.clone(), batch.index.clone(), views=batch.views
    )


def _unequal(one: Scene, two: Scene, ours: dict[str, float], theirs: dict[str, float]) -> str | None:
    """What differs after the same step: to the last bit on a CPU; on a GPU, where sums have no fixed order, losses."""
    if ours.keys() != theirs.keys():
        return "the set of losses"
    if one.space.compute.device.type == "cpu":
        odd = next((name for name in ours if ours[name] != theirs[name]), None)
        return f"loss {odd}" if odd is not None else difference(one.lane.state(), two.lane.state())
    odd = next((n for n in ours if not np.isclose(ours[n], theirs[n], rtol=1e-2, atol=1e-4)), None)
    return None if odd is None else f"loss {odd}"
