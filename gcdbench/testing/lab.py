"""Where methods are checked: real runs on a small easy dataset and the embedded tiny backbone, on the CPU.

Trunk passes and data are shared by all checks of a method. Nothing is written outside temporary folders.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gcdbench.contracts import Batch, Dataset, Losses, Method, Prediction, Progress, Stage
from gcdbench.prepare.environment import RunEnvironment, StoreOptions
from gcdbench.prepare.pool import ImagePool
from gcdbench.prepare.request import RunRequest, resolve_for
from gcdbench.prepare.run_context import RunContext, RunNotes, build_method, prepare_run, run_pool
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.records.run_directory import RunDirectory
from gcdbench.records.trackers import Trackers
from gcdbench.runs.rank_sync import NoTrackers, UnwrittenRun
from gcdbench.system.observer import Observer, Step
from gcdbench.system.parallel.communicator import Communicator
from gcdbench.system.plugin_call import plugin_call
from gcdbench.system.seeding import AmbientStream, generator
from gcdbench.testing.easy import EasyDigits
from gcdbench.testing.kit import NotApplicable
from gcdbench.testing.subject import Subject
from gcdbench.testing.turns import in_turns
from gcdbench.training.batches import batches, first_plans, stages_of
from gcdbench.training.evaluate import predict
from gcdbench.training.isolation import Guard, alive, stop_lane
from gcdbench.training.lane import Lane
from gcdbench.training.loop import Clock, train
from gcdbench.training.method_trainer import MethodTrainer

EPOCHS = 2
BATCH = 32
STEPS = 3
"""Batches that are kept for checks of single steps."""
DATASET = "digits"
"""Whose presets are used, since they are for short runs on tiny images."""


@dataclass(frozen=True)
class Trained:
    """A run that has ended: every bit of its state, its losses and its answer."""

    state: dict[str, Any]
    lines: list[dict[str, Any]]
    prediction: Prediction

    def plain(self) -> dict[str, Any]:
        """As nested data that can be compared."""
        confidence = self.prediction.confidence
        answer = {
            "cluster": self.prediction.cluster.tolist(),
            "base": {branch: values.tolist() for branch, values in self.prediction.base.items()},
            "confidence": None if confidence is None else confidence.tolist(),
        }
        return {"state": self.state, "losses": [line["losses"] for line in self.lines], "prediction": answer}


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(v) for key, v in value.items()}
    return [_copied(v) for v in value] if isinstance(value, list | tuple) else value


class Lab:
    """Workspaces, batches and short runs of one method."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.cls: type[Method] = subject.cls
        stores = StoreOptions(Path(tempfile.gettempdir()), packs=False)
        self._shared = SharedResources(RunEnvironment(root=Path("."), device="cpu", workers=0, store_options=stores))

    def ctx(
        self,
        *,
        seed: int = 0,
        dataset: type[Dataset] = EasyDigits,
        precision: str = "fp32",
        settings: dict[str, Any] | None = None,
        **request: Any,
    ) -> RunContext:
        """A run of the method with its settings for tiny images, made short."""
        short = {"train.epochs": EPOCHS, "train.batch_size": BATCH, "train.precision": precision, **(settings or {})}
        asked = RunRequest(
            self.subject.name, DATASET, recipe=self.subject.recipe, seeds=(seed,), settings=short, **request
        )
        resolved = resolve_for(asked, self.subject.plugin, DATASET, dataset)
        return prepare_run(resolved, resolved.runs[0], self._shared)

    @cached_property
    def usual(self) -> RunContext:
        """The run that most checks look at."""
        return self.ctx()

    @cached_property
    def stages(self) -> list[Stage]:
        """Stages with epochs."""
        return [stage for stage in stages_of(self.usual, build_method(self.usual)) if stage.epochs]

    def require_training(self) -> None:
        """Leave a check that is about training, if nothing is trained."""
        if not self.stages:
            raise NotApplicable("the method trains nothing: it has no stage")

    def batch(self, number: int = 0, ctx: RunContext | None = None) -> Batch:
        """A copy of one of the first batches; the same for all checks."""
        kept = self._batches if ctx is None else _first_batches(ctx)
        batch = kept[number]
        return dataclasses.replace(batch, **{name: getattr(batch, name).clone() for name in _TENSORS})

    @cached_property
    def _batches(self) -> list[Batch]:
        return _first_batches(self.usual)

    def pool(self, ctx: RunContext | None = None, rows: str = "unlabelled") -> ImagePool:
        """The training pool with its queries."""
        return run_pool(ctx or self.usual, rows, "kit")

    def ready(self, stage: Stage, ctx: RunContext | None = None) -> MethodTrainer:
        """A fresh lane at the first step of a stage, in training mode."""
        ctx = ctx or self.usual
        trainer = MethodTrainer(self.subject.name, build_method(ctx), ctx.compute)
        self.enter(trainer, stage, ctx)
        return trainer

    def enter(self, trainer: MethodTrainer, stage: Stage, ctx: RunContext | None = None, epoch: int = 0) -> None:
        """Begin a stage (if it is the first epoch) and an epoch, as the loop does."""
        ctx = ctx or self.usual
        t = self.progress(stage, epoch=epoch)
        with AmbientStream(0, "kit", "stage"):
            if epoch == 0:
                trainer.start_stage(stage)
            trainer.start_epoch(t)
            trainer.method.eval()
            with torch.no_grad(), plugin_call(trainer.name, "on_epoch_start"):
                trainer.method.on_epoch_start(self.pool(ctx), t)
            trainer.method.train()

    def progress(self, stage: Stage, step: int = 0, epoch: int = 0) -> Progress:
        """Within a stage; the same random numbers at each call."""
        steps = self.usual.sampler.steps
        random = generator(0, "kit", stage.name, epoch, step)
        return Progress(stage.name, epoch, stage.epochs, min(step, steps - 1), steps, random)

    def losses(self, trainer: MethodTrainer, batch: Batch, stage: Stage, step: int = 0) -> Losses:
        """One forward pass, nothing stepped."""
        with AmbientStream(0, "kit", "step", step), plugin_call(trainer.name, "forward"), trainer.compute.autocast():
            found: Losses = trainer.method(batch, self.progress(stage, step))
            return found

    def steps(self, trainer: MethodTrainer, stage: Stage, count: int = STEPS, ctx: RunContext | None = None) -> None:
        """Some optimiser steps."""
        for number in range(count):
            with AmbientStream(0, "kit", "step", number):
                trainer.step(self.batch(number % STEPS, ctx), self.progress(stage, number))

    def warm(self, ctx: RunContext | None = None) -> Method:
        """A method that has seen a few steps of each stage, in evaluation mode."""
        ctx = ctx or self.usual
        trainer = MethodTrainer(self.subject.name, build_method(ctx), ctx.compute)
        for stage in self.stages:
            self.enter(trainer, stage, ctx)
            self.steps(trainer, stage, 2, None if ctx is self.usual else ctx)
        return trainer.method.eval()

    def train(self, *contexts: RunContext, stop: Callable[[Step], bool] | None = None) -> list[Trained]:
        """Train to the end, together if there are several; with ``stop`` once interrupted and then resumed."""
        with tempfile.TemporaryDirectory(prefix="gcdbench-check-") as folder:
            if stop is not None:
                self._interrupted(contexts, Path(folder) / "run", stop)
                # Another run comes between, as in another process: what the module or class remembers is not the run's.
                self._run([self.ctx(seed=1)], Path(folder) / "other", Observer())
            return self._run(contexts, Path(folder) / "run", Observer())

    def train_on_ranks(self, count: int, ctx: RunContext) -> Trained:
        """The same on ``count`` ranks, which take turns in this process; what the first of them ends with."""
        with tempfile.TemporaryDirectory(prefix="gcdbench-check-") as folder:

            def rank(ranks: Communicator) -> Trained:
                environment = dataclasses.replace(ctx.environment, ranks=ranks)
                own = dataclasses.replace(ctx, environment=environment, notes=RunNotes())
                (trained,) = self._run([own], Path(folder), Observer())
                return trained

            return in_turns(count, rank)[0]

    def _run(self, contexts: Sequence[RunContext], folder: Path, observer: Observer) -> list[Trained]:
        """What each run ends with, instead of a record; nothing if it is stopped on the way."""
        trained: dict[int, Trained] = {}
        lanes = []
        for number, ctx in enumerate(contexts):
            directory = RunDirectory(folder / str(number))
            if not ctx.ranks.first:
                lanes.append(Lane(ctx, UnwrittenRun(directory.path), NoTrackers()))
                continue
            directory.open()
            directory.write_config({})
            lanes.append(Lane(ctx, directory, Trackers((), lambda text: None)))

        def keep(lane: Lane) -> None:
            answer = predict(lane.ctx, lane.trainer.method, lane.ctx.config.eval.rows)
            state = {name: _copied(value) for name, value in lane.trainer.state().items()}
            trained[id(lane)] = Trained(state, lane.folder.epochs(), answer)
            lane.close()

        try:
            train(lanes, Guard(observer, contexts[0].ranks), Clock(), keep)
        except _Stop as fault:
            for lane in alive(lanes):
                stop_lane(lane, fault)
            return []
        for lane in lanes:
            if lane.fault is not None:
                raise lane.fault
        return [trained[id(lane)] for lane in lanes]

    def _interrupted(self, contexts: Sequence[RunContext], folder: Path, stop: Callable[[Step], bool]) -> None:
        class Stopper(Observer):
            def step(self, step: Step) -> None:
                if stop(step):
                    raise _Stop

        self._run(contexts, folder, Stopper())

    @cached_property
    def reference(self) -> Trained:
        """The usual run, trained once."""
        return self.train(self.usual)[0]


_TENSORS = ("tokens", "target", "labelled", "index")


class _Stop(BaseException):
    """As if the process had got a signal to end."""


def _first_batches(ctx: RunContext) -> list[Batch]:
    return [batch for _, batch in batches(ctx, first_plans(ctx, Stage("kit", 1), STEPS))]
