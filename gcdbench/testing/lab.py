"""Where methods are checked: the real engine on a small easy dataset and the embedded tiny backbone, on the CPU.

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
from gcdbench.prepare.plan import RunRequest, plan_of
from gcdbench.prepare.pool import ImagePool
from gcdbench.prepare.run_context import Workspace, prepare
from gcdbench.prepare.shared_resources import Cache
from gcdbench.prepare.token_stores import Shelf
from gcdbench.records.run_directory import RunDirectory
from gcdbench.records.trackers import Trackers
from gcdbench.runs.onlooker import Untracked, Unwritten
from gcdbench.system.device import Compute
from gcdbench.system.observer import Reporter
from gcdbench.system.parallel.communicator import Ranks
from gcdbench.system.plugin_call import plugin_call
from gcdbench.system.seeding import AmbientStream, generator
from gcdbench.testing.easy import EasyDigits
from gcdbench.testing.kit import NotApplicable
from gcdbench.testing.subject import Subject
from gcdbench.testing.turns import in_turns
from gcdbench.training.batches import batches, first_plans
from gcdbench.training.lane import Runner
from gcdbench.training.loop import train_together
from gcdbench.training.method_trainer import Lane
from gcdbench.training.scoring import predict
from gcdbench.training.stages import stages_of

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


class _Runner(Runner):
    """Keeps what a run ends with instead of writing a record."""

    trained: Trained | None = None

    def finish(self) -> None:
        """Predict, and keep everything."""
        lane = self._lane
        answer = predict(self.space, lane.method, self.space.config.eval.rows)
        state = {name: _copied(value) for name, value in lane.state().items()}
        self.trained = Trained(state, self.folder.epochs(), answer)
        self.close()


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
        self._cache = Cache()

    def space(
        self,
        *,
        seed: int = 0,
        dataset: type[Dataset] = EasyDigits,
        precision: str = "fp32",
        settings: dict[str, Any] | None = None,
        **request: Any,
    ) -> Workspace:
        """A run of the method with its settings for tiny images, made short."""
        short = {"train.epochs": EPOCHS, "train.batch_size": BATCH, "train.precision": precision, **(settings or {})}
        asked = RunRequest(
            self.subject.name, DATASET, recipe=self.subject.recipe, seeds=(seed,), settings=short, **request
        )
        planned = plan_of(asked, self.subject.plugin, DATASET, dataset)
        compute = Compute(torch.device("cpu"), planned.runs[0].config.train.precision)
        shelf = Shelf(Path(tempfile.gettempdir()), packs=False)
        return prepare(planned, planned.runs[0], compute, Path("."), 0, self._cache, shelf=shelf)

    @cached_property
    def usual(self) -> Workspace:
        """The run that most checks look at."""
        return self.space()

    @cached_property
    def stages(self) -> list[Stage]:
        """Stages with epochs."""
        return [stage for stage in stages_of(self.usual, self.usual.method()) if stage.epochs]

    def require_training(self) -> None:
        """Leave a check that is about training, if nothing is trained."""
        if not self.stages:
            raise NotApplicable("the method trains nothing: it has no stage")

    def batch(self, number: int = 0, space: Workspace | None = None) -> Batch:
        """A copy of one of the first batches; the same for all checks."""
        kept = self._batches if space is None else _first_batches(space)
        batch = kept[number]
        return dataclasses.replace(batch, **{name: getattr(batch, name).clone() for name in _TENSORS})

    @cached_property
    def _batches(self) -> list[Batch]:
        return _first_batches(self.usual)

    def pool(self, space: Workspace | None = None, rows: str = "unlabelled") -> ImagePool:
        """The training pool with its queries."""
        return (space or self.usual).pool(rows, "kit")

    def ready(self, stage: Stage, space: Workspace | None = None) -> Lane:
        """A fresh lane at the first step of a stage, in training mode."""
        space = space or self.usual
        lane = Lane(self.subject.name, space.method(), space.compute)
        self.enter(lane, stage, space)
        return lane

    def enter(self, lane: Lane, stage: Stage, space: Workspace | None = None, epoch: int = 0) -> None:
        """Begin a stage (if it is the first epoch) and an epoch, as the loop does."""
        space = space or self.usual
        t = self.progress(stage, epoch=epoch)
        with AmbientStream(0, "kit", "stage"):
            if epoch == 0:
                lane.start_stage(stage)
            lane.start_epoch(t)
            lane.method.eval()
            with torch.no_grad(), plugin_call(lane.name, "on_epoch_start"):
                lane.method.on_epoch_start(self.pool(space), t)
            lane.method.train()

    def progress(self, stage: Stage, step: int = 0, epoch: int = 0) -> Progress:
        """Within a stage; the same random numbers at each call."""
        steps = self.usual.sampler.steps
        random = generator(0, "kit", stage.name, epoch, step)
        return Progress(stage.name, epoch, stage.epochs, min(step, steps - 1), steps, random)

    def losses(self, lane: Lane, batch: Batch, stage: Stage, step: int = 0) -> Losses:
        """One forward pass, nothing stepped."""
        with AmbientStream(0, "kit", "step", step), plugin_call(lane.name, "forward"), lane.compute.autocast():
            return lane.method(batch, self.progress(stage, step))

    def steps(self, lane: Lane, stage: Stage, count: int = STEPS, space: Workspace | None = None) -> None:
        """Some optimiser steps."""
        for number in range(count):
            with AmbientStream(0, "kit", "step", number):
                lane.step(self.batch(number % STEPS, space), self.progress(stage, number))

    def warm(self, space: Workspace | None = None) -> Method:
        """A method that has seen a few steps of each stage, in evaluation mode."""
        space = space or self.usual
        lane = Lane(self.subject.name, space.method(), space.compute)
        for stage in self.stages:
            self.enter(lane, stage, space)
            self.steps(lane, stage, 2, None if space is self.usual else space)
        return lane.method.eval()

    def train(self, *spaces: Workspace, stop: Callable[[Sequence[Runner]], bool] | None = None) -> list[Trained]:
        """Train to the end, together if there are several; with ``stop`` once interrupted and then continued."""
        with tempfile.TemporaryDirectory(prefix="gcdbench-check-") as folder:
            if stop is not None:
                self._interrupted(spaces, Path(folder) / "run", stop)
                # Another run comes between, as in another process: what the module or class remembers is not the run's.
                self._run([self.space(seed=1)], Path(folder) / "other", Reporter())
            return [r.trained for r in self._run(spaces, Path(folder) / "run", Reporter()) if r.trained is not None]

    def train_on_ranks(self, count: int, space: Workspace) -> Trained:
        """The same on so many ranks, which take turns in this process; what the first of them ends with."""
        with tempfile.TemporaryDirectory(prefix="gcdbench-check-") as folder:

            def rank(ranks: Ranks) -> Trained:
                own = dataclasses.replace(space, ranks=ranks, warnings=[])
                (runner,) = self._run([own], Path(folder), Reporter())
                assert runner.trained is not None
                return runner.trained

            return in_turns(count, rank)[0]

    def _run(self, spaces: Sequence[Workspace], folder: Path, reporter: Reporter) -> list[_Runner]:
        runners = []
        for number, space in enumerate(spaces):
            directory = RunDirectory(folder / str(number))
            if not space.ranks.first:
                runners.append(_Runner(space, Unwritten(directory.path), Untracked()))
                continue
            directory.open()
            directory.write_config({})
            runners.append(_Runner(space, directory, Trackers((), lambda text: None)))
        try:
            train_together(runners, reporter)
        except _Stop as fault:
            for runner in runners:
                runner.stop(fault)
            return runners
        for runner in runners:
            if runner.fault is not None:
                raise runner.fault
        return runners

    def _interrupted(self, spaces: Sequence[Workspace], folder: Path, stop: Callable[[Sequence[Runner]], bool]) -> None:
        class Stopper(Reporter):
            def step(self, t: Progress, lanes: Sequence[Runner]) -> None:
                if stop(lanes):
                    raise _Stop

        self._run(spaces, folder, Stopper())

    @cached_property
    def reference(self) -> Trained:
        """The usual run, trained once."""
        return self.train(self.usual)[0]


_TENSORS = ("tokens", "target", "labelled", "index")


class _Stop(BaseException):
    """As if the process had been told to end."""


def _first_batches(space: Workspace) -> list[Batch]:
    return [batch for _, batch in batches(space, first_plans(space, Stage("kit", 1), STEPS))]
