"""Everything a method will be asked for, tried in the first seconds on a throw-away copy: what fails, fails now."""

from __future__ import annotations

import copy
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gcdbench.contracts import Batch, Progress, Stage
from gcdbench.errors import GcdbenchError, PluginError, TrainingError
from gcdbench.prepare.pool import ImagePool
from gcdbench.prepare.run_context import RunContext, build_method
from gcdbench.runs.sample_rows import SampleRows
from gcdbench.system.plugin_call import plugin_call
from gcdbench.system.seeding import AmbientStream, fenced_rng, generator
from gcdbench.system.state_diff import difference
from gcdbench.training import checkpoint
from gcdbench.training.batches import stages_of
from gcdbench.training.evaluate import predict
from gcdbench.training.method_trainer import MethodTrainer, NotFinite

STEPS = 2
FILE = "checkpoint/.rehearsal.tmp"
_STATE = "what a method keeps from one call to the next must be parameters, buffers or get_extra_state"


@dataclass
class RehearsedRun:
    """One run in rehearsal: a throw-away lane, and the few rows it is shown."""

    ctx: RunContext
    trainer: MethodTrainer
    stage: Stage
    sample: SampleRows
    folder: Path

    def progress(self, epoch: int, step: int) -> Progress:
        """As in training; random numbers depend on epoch and step only."""
        ctx, stage = self.ctx, self.stage
        random = generator(ctx.config.seed, "rehearsal", stage.name, epoch, step, device=ctx.compute.device)
        epoch, step = min(epoch, stage.epochs - 1), min(step, ctx.sampler.steps - 1)
        return Progress(stage.name, epoch, stage.epochs, step, ctx.sampler.steps, random)

    def start_epoch(self, epoch: int) -> None:
        """Rates and `on_epoch_start`, as before an epoch."""
        t, trainer = self.progress(epoch, 0), self.trainer
        with AmbientStream(self.ctx.config.seed, "rehearsal", "epoch", epoch):
            trainer.start_epoch(t)
            trainer.method.eval()
            with torch.no_grad(), plugin_call(trainer.name, "on_epoch_start"):
                trainer.method.on_epoch_start(self.pool(), t)
            trainer.method.train()

    def pool(self) -> ImagePool:
        """The few rows, as the method sees the training set."""
        return self.sample.pool(self.ctx.config.seed)

    def step(self, epoch: int, step: int) -> dict[str, float]:
        """One step; its losses."""
        self.trainer.sums = {}
        batch = self.sample.batch(step % STEPS)
        with AmbientStream(self.ctx.config.seed, "rehearsal", "step", epoch, step):
            self.trainer.step(_copy(batch), self.progress(epoch, step))
        losses = self.trainer.means()
        self.trainer.require_finite(step)
        return losses

    def saved(self) -> Any:
        """The run's state, written to the disk and read back."""
        path, name = self.folder / FILE, self.trainer.name
        try:
            with plugin_call(name, "state_dict", passes=(OSError,)):
                checkpoint.write(path, self.trainer.state())
            return checkpoint.read(path)
        except (PluginError, TrainingError):
            raise
        except GcdbenchError as fault:
            raise PluginError(
                f"The state of '{name}' cannot be read back: get_extra_state may hold tensors, numbers, text, lists "
                "and dictionaries only."
            ) from fault
        finally:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # not empty, or gone
                path.parent.rmdir()

    def continued(self, saved: Any) -> RehearsedRun:
        """The same run as another process would find it: a new method with the state that was saved."""
        trainer = MethodTrainer(self.trainer.name, build_method(self.ctx), self.ctx.compute)
        with AmbientStream(self.ctx.config.seed, "stage", self.stage.name):
            trainer.start_stage(self.stage)
        try:
            trainer.restore(copy.deepcopy(saved))  # an optimiser may take the tensors themselves
        except (PluginError, TrainingError):  # said already: a hook, or memory
            raise
        except GcdbenchError as fault:
            raise PluginError(
                f"The method '{trainer.name}' could not resume from its checkpoint: {fault.__cause__ or fault}; "
                f"{_STATE}."
            ) from fault
        trainer.method.train()
        return RehearsedRun(self.ctx, trainer, self.stage, self.sample, self.folder)


class Rehearsal:
    """Tries runs that see the same batches; the trunk passes are made once for all of them."""

    def __init__(self) -> None:
        self._samples: dict[tuple[int, str], SampleRows] = {}
        self.taken: dict[str, dict[str, float]] = {}
        """By run and stage, the seconds of a step."""
        self.step_seconds: dict[str, float] = {}
        """By stage, the time of the faster of two steps of the last method, without the trunk; the mean over an epoch
        where steps train different things."""

    def of(self, ctx: RunContext, folder: Path) -> str | None:
        """Two steps of every stage, `on_epoch_start` and `predict` on a few rows, checkpoints written, read and resumed
        from. A sentence if there is something the user should know; what cannot work is raised."""
        key = (ctx.k, ctx.config.eval.rows)
        if key not in self._samples:
            self._samples[key] = SampleRows(ctx)
        sample, note = self._samples[key], None
        self.step_seconds = {}
        with fenced_rng(ctx.config.seed, "rehearsal"):
            trainer = MethodTrainer(ctx.config.method, build_method(ctx), ctx.compute)
            for stage in stages_of(ctx, trainer.method):
                with AmbientStream(ctx.config.seed, "stage", stage.name):
                    trainer.start_stage(stage)
                if stage.epochs:
                    note = self._stage(RehearsedRun(ctx, trainer, stage, sample, folder)) or note
            predict(ctx, trainer.method, ctx.config.eval.rows, sample.pool(ctx.config.seed))
        self.taken[ctx.run_id] = self.step_seconds
        return note

    def _stage(self, run: RehearsedRun) -> str | None:
        run.start_epoch(0)
        kinds, steps = _kinds_of_steps(run), run.ctx.sampler.steps
        seconds = 0.0
        for numbers in kinds:
            fastest = float("inf")
            for number in (numbers * STEPS)[:STEPS]:
                run.sample.batch(number % STEPS)  # trunk passes are not the method's time
                started = time.monotonic()
                run.step(0, number)
                fastest = min(fastest, time.monotonic() - started)
            seconds += len(numbers) / steps * fastest
        self.step_seconds[run.stage.name] = seconds
        notes = (_resumes_within_an_epoch(run), _resumes_after_an_epoch(run))
        return notes[0] or notes[1]


def _kinds_of_steps(run: RehearsedRun) -> list[list[int]]:
    """The steps of an epoch by what they train; two of each kind are rehearsed."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    first = run.progress(0, 0)
    for number in range(run.ctx.sampler.steps):
        kinds.setdefault(run.trainer.active(replace(first, step=number)), []).append(number)
    return list(kinds.values())


def _resumes_within_an_epoch(run: RehearsedRun) -> str | None:
    """One step more, by the run and by its copy from the checkpoint: why they differ, or None."""
    saved, name = run.saved(), run.trainer.name
    twin = run.continued(saved)
    changed = difference(run.trainer.state(), twin.trainer.state())
    if changed is not None:
        raise PluginError(f"The state of '{name}' does not survive a checkpoint: {changed} changes.")
    ours = run.step(0, STEPS)
    only = f"so it is saved at the end of each epoch only: {_STATE}."
    try:
        theirs = twin.step(0, STEPS)
    except (PluginError, NotFinite) as fault:
        return f"The method '{name}' cannot continue in the middle of an epoch ({fault}), {only}"
    changed = _unequal(run, twin, ours, theirs)
    if changed is None:
        return None
    again = run.continued(saved)
    if _unequal(twin, again, theirs, again.step(0, STEPS)) is not None:
        return f"The method '{name}' does not give the same numbers twice ({changed} differs): no run can be repeated."
    return f"Continued in the middle of an epoch, '{name}' differs ({changed}), {only}"


def _resumes_after_an_epoch(run: RehearsedRun) -> str | None:
    """The same across the end of an epoch, where a run must be able to continue."""
    saved, name = run.saved(), run.trainer.name

    last = run.stage.epochs - 1

    def next_epoch(each: RehearsedRun) -> dict[str, float]:
        found: dict[str, float] = {}
        for epoch in sorted({1, max(1, last)}):  # the last one too, when terms that start late have started
            each.start_epoch(epoch)
            found |= {f"{name} in epoch {epoch + 1}": value for name, value in each.step(epoch, 0).items()}
        return found

    ours = next_epoch(run)
    twin = run.continued(saved)
    try:
        theirs = next_epoch(twin)
    except (PluginError, NotFinite) as fault:
        raise PluginError(f"The method '{name}' could not resume from its checkpoint: {fault}; {_STATE}.") from fault
    changed = _unequal(run, twin, ours, theirs)
    if changed is None:
        return None
    again = run.continued(saved)
    if _unequal(twin, again, theirs, next_epoch(again)) is not None:
        return f"The method '{name}' does not give the same numbers twice ({changed} differs): no run can be repeated."
    raise PluginError(
        f"Continued from a checkpoint, the method '{name}' does not do what it would have done ({changed} differs): "
        f"{_STATE}."
    )


def _copy(batch: Batch) -> Batch:
    """A method that writes into its batch is caught in training; here it must not spoil the others' rehearsal."""
    return Batch(
        batch.tokens.clone(), batch.target.clone(), batch.labelled.clone(), batch.index.clone(), views=batch.views
    )


def _unequal(one: RehearsedRun, two: RehearsedRun, ours: dict[str, float], theirs: dict[str, float]) -> str | None:
    """What differs after the same step: to the last bit on a CPU; on a GPU, where sums have no fixed order, losses."""
    if ours.keys() != theirs.keys():
        return "the set of losses"
    if one.ctx.compute.device.type == "cpu":
        odd = next((name for name in ours if ours[name] != theirs[name]), None)
        return f"loss {odd}" if odd is not None else difference(one.trainer.state(), two.trainer.state())
    odd = next((n for n in ours if not np.isclose(ours[n], theirs[n], rtol=1e-2, atol=1e-4)), None)
    return None if odd is None else f"loss {odd}"
