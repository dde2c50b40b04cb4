"""One run on its way: its lane, how far it has come, and what it writes. Several runners may share trunk passes."""

from __future__ import annotations

import dataclasses
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from gcdbench.contracts import Batch, Progress, Stage
from gcdbench.engine import checkpoint
from gcdbench.engine.faults import forget_frames, plugin_call, told
from gcdbench.engine.lane import Lane
from gcdbench.engine.recording import make_record, write_names
from gcdbench.engine.scoring import predict, score
from gcdbench.engine.seeding import AmbientStream, generator
from gcdbench.engine.selected import Selected, evaluate
from gcdbench.engine.trackers import Trackers
from gcdbench.errors import GcdbenchError, PluginError
from gcdbench.files import write_json

if TYPE_CHECKING:
    from gcdbench.engine.workspace import Workspace
    from gcdbench.results.record import Record
    from gcdbench.results.rundir import RunDirectory

LOOK = 2.0
"""Seconds between looks at the losses within an epoch; each look waits for the device."""


class Runner:
    """Takes a run from its last checkpoint to its record, epoch by epoch, when it is told to."""

    def __init__(self, space: Workspace, folder: RunDirectory, trackers: Trackers) -> None:
        self.space = space
        self.folder = folder
        self.trackers = trackers
        self.record: Record | None = None
        self.fault: GcdbenchError | None = None
        self.latest: dict[str, float] = {}
        """Means of the loss terms at the last look."""
        self.stages: list[Stage] = []
        self.stage_number = self.epoch = 0
        self.most_lanes = 1
        self.lane: Lane | None = None
        self.over = False
        """Finished or stopped."""

    def open(self) -> None:
        """Build the method and restore what the last checkpoint holds."""
        space = self.space
        self.lane = lane = Lane(space.config.method, space.method(), space.compute)
        saved = checkpoint.load(self.folder.path, space.compute.device)
        with AmbientStream(space.config.seed, "stages"), plugin_call(lane.name, "stages"):
            self.stages = list(lane.method.stages())
        if not all(isinstance(stage, Stage) for stage in self.stages):
            raise PluginError(f"The method '{lane.name}' must return gcdbench.Stage objects from stages.")
        self.stage_number, self.epoch = (saved["stage"], saved["epoch"]) if saved else (0, 0)
        self.selected = Selected.restore(saved["selected"] if saved else None)
        if self.stages:
            self._start_stage()
        if saved is not None:
            lane.restore(saved["lane"])
        self._advance()
        self.trackers.start(self.folder.path, space.config.as_dict(), self.epochs_done, space.sampler.steps)

    @property
    def epochs_done(self) -> int:
        """Epochs of all stages so far."""
        return sum(s.epochs for s in self.stages[: self.stage_number]) + self.epoch

    @property
    def position(self) -> tuple[str, int] | None:
        """Name of the stage and number of the epoch that come next; None when training is over."""
        if self.stage_number >= len(self.stages):
            return None
        return self.stages[self.stage_number].name, self.epoch

    def _advance(self) -> None:
        """Go on to the next stage that has epochs left."""
        while self.stage_number < len(self.stages) and self.epoch >= self.stages[self.stage_number].epochs:
            self.stage_number, self.epoch = self.stage_number + 1, 0
            if self.stage_number < len(self.stages):
                self._start_stage()

    def _start_stage(self) -> None:
        stage = self.stages[self.stage_number]
        with AmbientStream(self.space.config.seed, "stage", stage.name):
            self._lane.start_stage(stage)

    @property
    def _lane(self) -> Lane:
        assert self.lane is not None, "the run is over"
        return self.lane

    def progress(self, step: int) -> Progress:
        """Where the run stands."""
        stage = self.stages[self.stage_number]
        return Progress(stage.name, self.epoch, stage.epochs, step, self.space.sampler.steps, self._random)

    def start_epoch(self, lanes: int) -> None:
        """Set rates and let the method look at the pool; ``lanes`` runs share this epoch."""
        space, lane, seed = self.space, self._lane, self.space.config.seed
        stage = self.stages[self.stage_number]
        self.started = self.looked = time.monotonic()
        self.lanes = lanes
        self.most_lanes = max(self.most_lanes, lanes)
        self._random = generator(seed, "steps", stage.name, self.epoch, device=space.compute.device)
        self._ambient = AmbientStream(seed, "ambient", stage.name, self.epoch)
        t = self.progress(0)
        lane.start_epoch(t)
        lane.method.eval()
        with self._ambient, torch.no_grad(), plugin_call(lane.name, "on_epoch_start"):
            lane.method.on_epoch_start(space.pool(space.config.eval.rows, stage.name, self.epoch), t)
        lane.method.train()

    def step(self, batch: Batch, number: int) -> None:
        """One optimiser step; now and then a look at the losses."""
        t = self.progress(number)
        # Lanes share the numbers, but each has a tensor of its own, with a gradient of its own if it asks for one.
        own = dataclasses.replace(batch, tokens=batch.tokens.detach())
        with self._ambient:
            self._lane.step(own, t)
        now = time.monotonic()
        if now - self.looked > LOOK:
            self.looked = now
            self.latest = self._lane.means()
            self.trackers.step(t, self.latest)

    def end_epoch(self) -> dict[str, Any]:
        """Evaluate if it is time, tell the trackers, write the checkpoint; the epoch's line of `metrics.jsonl`."""
        lane, stage = self._lane, self.stages[self.stage_number]
        self.latest = lane.means()
        line: dict[str, Any] = {
            "stage": stage.name,
            "epoch": self.epoch + 1,
            "losses": self.latest,
            "lr": lane.learning_rates(),
            "seconds": round(time.monotonic() - self.started, 3),
        }
        if self.lanes > 1:
            line["lanes"] = self.lanes  # the seconds are those of all of them together
        if self._evaluates(stage):
            started = time.monotonic()
            line["metrics"], self.selected = evaluate(self.space, lane.method, stage, self.epoch, self.selected)
            line["evaluation_seconds"] = round(time.monotonic() - started, 3)
        self.trackers.epoch(line)
        self.epoch += 1
        checkpoint.save(
            self.folder.path,
            {
                "stage": self.stage_number,
                "epoch": self.epoch,
                "lane": lane.state(),
                "selected": None if self.selected is None else self.selected.state(),
            },
        )
        self._advance()
        return line

    def _evaluates(self, stage: Stage) -> bool:
        every = self.space.config.eval.every or (1 if self.space.rule.metric is not None else 0)
        return bool(every) and ((self.epoch + 1) % every == 0 or self.epoch + 1 == stage.epochs)

    def finish(self) -> None:
        """Predict, score and write the record; the method is released."""
        space, folder, method = self.space, self.folder, self._lane.method
        started = time.monotonic()
        rows = space.config.eval.rows
        prediction = self.selected.prediction if self.selected else predict(space, method, rows)
        truth = space.truth(rows)
        folder.write_predictions(space.scored_rows(rows), prediction, None if truth is None else truth.target)
        write_names(space, folder, prediction)
        space.timings["predict"] = time.monotonic() - started
        started = time.monotonic()
        scores = score(space, prediction, rows)
        space.timings["evaluate"] = time.monotonic() - started
        # An earlier process may have trained some epochs with more lanes.
        lanes = max([self.most_lanes, *(int(line.get("lanes", 1)) for line in folder.epochs())])
        record = make_record(space, folder, method, scores, self.selected, lanes)
        write_json(folder.record_file, record.as_dict())
        folder.log("finished")
        self.trackers.finish(record.as_dict())
        self.record = record
        self.close()

    def stop(self, fault: BaseException) -> GcdbenchError:
        """The run ends here; its last checkpoint stays. Call it where the fault is being handled."""
        with suppress(OSError):  # a full disk may be the very reason
            self.folder.log(f"stopped: {type(fault).__name__}: {fault}\n{traceback.format_exc()}")
        name = self.space.config.method
        if isinstance(fault, Exception):
            self.fault = told(fault, name)
            forget_frames(fault)
        else:
            self.fault = GcdbenchError(f"The run of '{name}' was interrupted.")
        self.close()
        return self.fault

    def close(self) -> None:
        """Release tail, optimisers and trackers."""
        self.over = True
        self.lane = None
        self.trackers.close()
