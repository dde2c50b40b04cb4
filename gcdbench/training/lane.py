"""One run on its way: its lane, how far it has come, and what it writes. Several runners may share trunk passes."""

from __future__ import annotations

import dataclasses
import time
import traceback
import zlib
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import torch

from gcdbench.contracts import Batch, Progress, Stage
from gcdbench.errors import GcdbenchError, PluginError, RankLost
from gcdbench.prepare.file_guard import DataChanged, DataState, compare
from gcdbench.records.trackers import Trackers
from gcdbench.runs.finish import make_record, write_names
from gcdbench.system.files import write_json
from gcdbench.system.parallel.communicator import Ranks
from gcdbench.system.plugin_call import forget_frames, plugin_call, told
from gcdbench.system.seeding import AmbientStream, generator
from gcdbench.training import checkpoint
from gcdbench.training.evaluate import Selected, evaluate
from gcdbench.training.method_trainer import Lane, NotFinite
from gcdbench.training.nonfinite_report import write_evidence
from gcdbench.training.scoring import predict, score
from gcdbench.training.stages import stages_of

if TYPE_CHECKING:
    from gcdbench.prepare.run_context import Workspace
    from gcdbench.records.record import Record
    from gcdbench.records.run_directory import RunDirectory

_TAINTED = (PluginError, DataChanged)
"""Faults after which a run must not be saved as it stands: its last steps cannot be trusted."""
LOOK = 2.0
"""Seconds between looks at the losses within an epoch; each look waits for the device."""


class Runner:
    """Takes a run from its last checkpoint to its record, step by step, when it is told to."""

    def __init__(self, space: Workspace, folder: RunDirectory, trackers: Trackers) -> None:
        self.space = space
        self.folder = folder
        self.trackers = trackers
        self.ranks = space.ranks
        self.record: Record | None = None
        self.fault: GcdbenchError | None = None
        self.latest: dict[str, float] = {}
        """Means of the loss terms at the last look."""
        self.stages: list[Stage] = []
        self.stage_number = self.epoch = self.steps_done = 0
        self.most_lanes = 1
        self.lane: Lane | None = None
        self.begun = True
        """Whether the run is this process's: not while another one holds its lock."""
        self.over = False
        """Finished or stopped."""
        self.saves_within = True
        """Whether the run can go on from the middle of an epoch."""
        self._resting = False
        """Between two steps of an epoch, so that the run could be saved as it stands."""
        self._within: dict[str, Any] | None = None
        """What a checkpoint from the middle of an epoch says of that epoch, until it goes on."""

    def open(self) -> None:
        """Build the method and restore what the last checkpoint holds."""
        space = self.space
        self.lane = lane = Lane(space.config.method, space.method(), space.compute, self.ranks)
        saved, notes = self.ranks.from_first(lambda: checkpoint.restore(self.folder.path, space.run_id))
        for note in notes:
            self.folder.log(note)
            self.trackers.warn(note)
        self.stages = stages_of(space, lane.method)
        if saved is not None:
            self.stage_number, self.epoch, self.steps_done = saved["stage"], saved["epoch"], saved["step"]
            self._within = saved["within"]
            self.saves_within = saved["saves_within"]
            space.warnings.extend(note for note in saved["notes"] if note not in space.warnings)
            self._compare(saved["made_with"])
            if self.ranks.first:
                compare(DataState(saved["files"]), space.data.state, space)
        elif notes:  # there was no rehearsal, since there seemed to be a checkpoint
            self.saves_within = False
        self.selected = Selected.restore(saved["selected"] if saved else None)
        if self.position is not None:
            self._start_stage()
        if saved is not None:
            lane.restore(saved["lane"])
        self._advance()
        steps = self.epochs_done * space.sampler.steps + self.steps_done
        self.trackers.start(self.folder.path, space.config.as_dict(), self.epochs_done, steps)

    def _compare(self, made_with: dict[str, Any]) -> None:
        """Another torch, device or number of threads rounds differently: allowed, but never silently."""
        now = _made_with(self.space)
        other = [f"{name} {was} before, {now.get(name)} now" for name, was in made_with.items() if now.get(name) != was]
        if other:
            self._note(f"The run goes on under other conditions ({'; '.join(other)}), so not equal to the last bit.")

    def _note(self, text: str) -> None:
        """Something that the record must say, whichever process writes it in the end."""
        self.space.warnings.append(text)
        self.trackers.warn(text)

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
        if self._within is not None:
            self._continue_epoch(self._within)
        else:
            t = self.progress(0)
            lane.start_epoch(t)
            lane.method.eval()
            with self._ambient, torch.no_grad(), plugin_call(lane.name, "on_epoch_start"):
                lane.method.on_epoch_start(space.pool(space.config.eval.rows, stage.name, self.epoch), t)
        self._within = None
        lane.method.train()
        self._resting = True

    def _continue_epoch(self, within: dict[str, Any]) -> None:
        """The epoch has begun in another process: only what it left is needed."""
        self.started -= within["seconds"]
        self.lanes = max(self.lanes, within["lanes"])
        try:
            self._random.set_state(within["random"])
        except (RuntimeError, TypeError):  # of another kind of device: its numbers cannot be had here
            seed, stage = self.space.config.seed, self.stages[self.stage_number]
            names = ("steps", stage.name, self.epoch, "from", self.steps_done)
            self._random = generator(seed, *names, device=self.space.compute.device)
            self._note(f"Random numbers of epoch {self.epoch + 1} begin anew at step {self.steps_done + 1}.")
        self._ambient.restore(within["ambient"])
        self._lane.restore_sums(within["sums"])

    def step(self, batch: Batch, number: int) -> None:
        """One optimiser step; now and then a look at the losses."""
        t = self.progress(number)
        # Lanes share the numbers, but each has a tensor of its own, with a gradient of its own if it asks for one.
        own = dataclasses.replace(batch, tokens=batch.tokens.detach())
        self._resting = False
        with self._ambient:
            self._lane.step(own, t)
        self.steps_done = number + 1
        self._resting = True
        now = time.monotonic()
        if self.ranks.first and now - self.looked > LOOK:  # a look waits for the device: one rank is enough
            self.looked = now
            self.latest = self._lane.means()
            self.trackers.step(t, self.latest)

    def end_epoch(self, whole: AbstractContextManager[None] | None = None) -> dict[str, Any]:
        """Evaluate if it is time, tell the trackers, write the checkpoint; the epoch's line of `metrics.jsonl`.

        ``whole`` is entered for the part that must not be interrupted.
        """
        lane, stage = self._lane, self.stages[self.stage_number]
        self.latest = lane.means()
        lane.require_finite(self.steps_done - 1)
        self._agree()
        if self.ranks.first:
            self.space.data.state.check(self.space)
        line: dict[str, Any] = {
            "stage": stage.name,
            "epoch": self.epoch + 1,
            "losses": self.latest,
            "lr": lane.learning_rates(),
            "seconds": round(time.monotonic() - self.started, 3),
        }
        if self.lanes > 1:
            line["lanes"] = self.lanes  # the seconds are those of all of them together
        selected = self.selected
        if self._evaluates(stage):
            started = time.monotonic()
            line["metrics"], selected = evaluate(self.space, lane.method, stage, self.epoch, self.selected)
            line["evaluation_seconds"] = round(time.monotonic() - started, 3)
        with whole or nullcontext():
            self._resting = False
            self.selected = selected
            self.trackers.epoch(line)
            self.epoch, self.steps_done = self.epoch + 1, 0
            self._save(within=None)
        self._advance()
        return line

    def _evaluates(self, stage: Stage) -> bool:
        every = self.space.config.eval.every or (1 if self.space.rule.metric is not None else 0)
        return bool(every) and ((self.epoch + 1) % every == 0 or self.epoch + 1 == stage.epochs)

    def save_within(self) -> None:
        """A checkpoint in the middle of an epoch, from which the run goes on exactly where it stands."""
        if self.ranks.first:
            self.space.data.state.check(self.space)
        self._lane.means()  # raises if a loss was not finite since the last look
        self._lane.require_finite(self.steps_done - 1)
        self._save(
            within={
                "random": self._random.get_state(),
                "ambient": self._ambient.state(),
                "sums": self._lane.sums_state(),
                "seconds": time.monotonic() - self.started,
                "lanes": self.lanes,
            }
        )

    def _agree(self) -> None:
        """Ranks that round differently (other processors) drift apart in the last bits: all take the first one's state.

        Random numbers that differ mean that a method draws some within the shared part of its network.
        """
        if self.ranks.alone:
            return
        lane = self._lane
        drawn = [zlib.crc32(self._random.get_state().numpy().tobytes()), self._ambient.digest()]
        same = [high == -low for high, low in zip(*_extremes(self.ranks, [*drawn, lane.digest()]), strict=True)]
        if not all(same[:-1]):
            raise PluginError(
                f"The method '{lane.name}' draws random numbers that depend on how rows are shared among processes "
                "(dropout inside the tail?): train it in one process."
            )
        if not same[-1]:
            lane.restore(self.ranks.send(lane.state()))
            note = "The processes of this run round differently: at ends of epochs all take the first one's weights."
            if note not in self.space.warnings:
                self._note(note)

    def _save(self, within: dict[str, Any] | None) -> None:
        if not self.ranks.first:
            return
        self._require_folder()
        checkpoint.save(
            self.folder.path,
            {
                "run": self.space.run_id,
                "made_with": _made_with(self.space),
                "files": self.space.data.state.files,
                "notes": list(self.space.warnings),
                "stage": self.stage_number,
                "epoch": self.epoch,
                "step": self.steps_done,
                "lane": self._lane.state(),
                "selected": None if self.selected is None else self.selected.state(),
                "saves_within": self.saves_within,
                "within": within,
            },
        )

    def _require_folder(self) -> None:
        if not self.folder.is_run:
            raise GcdbenchError(f"The run directory {self.folder.path} has vanished while the run went on.")

    def take(self, record: Record) -> None:
        """Another process has finished the run."""
        self.record = record
        self.close()

    def finish(self) -> None:
        """Predict, score and write the record; the method is released."""
        space, folder, method = self.space, self.folder, self._lane.method
        started = time.monotonic()
        rows = space.config.eval.rows
        prediction = self.selected.prediction if self.selected else predict(space, method, rows)
        if not self.ranks.first:
            self.close()
            return
        space.data.state.check(space)
        self._require_folder()
        truth = space.truth(rows)
        folder.write_predictions(space.scored_rows(rows), prediction, None if truth is None else truth.target)
        write_names(space, folder, prediction)
        space.timings["predict"] = time.monotonic() - started
        started = time.monotonic()
        scores = score(space, prediction, rows)
        space.timings["evaluate"] = time.monotonic() - started
        # An earlier process may have trained some epochs with more lanes.
        lanes = max([self.most_lanes, *(int(line.get("lanes", 1)) for line in folder.epochs())])
        record = make_record(space, folder, method, prediction, scores, self.selected, lanes)
        write_json(folder.record_file, record.as_dict())
        with suppress(OSError):  # the run is finished, whatever becomes of its log
            folder.log("finished")
        self.trackers.finish(record.as_dict())
        self.record = record
        self.close()

    def stop(self, fault: BaseException) -> GcdbenchError:
        """The run ends here, saved as it stands if it is whole. Call it where the fault is being handled."""
        if self.begun:
            with suppress(Exception):  # a full disk may be the very reason; nothing here may hurt the other lanes
                self.folder.log(f"stopped: {type(fault).__name__}: {fault}\n{traceback.format_exc()}")
        name = self.space.config.method
        if isinstance(fault, NotFinite) and self.lane is not None and self.ranks.first:
            with suppress(Exception):
                fault.args = (f"{fault} {write_evidence(self, fault)}",)
        elif (
            self._resting
            and self.steps_done
            and self.saves_within
            and self.ranks.first
            and not isinstance(fault, _TAINTED)
            # A GPU may wait for ever for a message of a rank that is gone.
            and not (isinstance(fault, RankLost) and self.space.compute.device.type == "cuda")
        ):
            self._save_before_stopping()
        if isinstance(fault, Exception):
            self.fault = told(fault, name)
            forget_frames(fault)
            if self.begun and self.ranks.first and not isinstance(fault, RankLost):
                with suppress(OSError):
                    self.folder.write_failure(str(self.fault))
        else:
            self.fault = GcdbenchError(f"The run of '{name}' was interrupted.")
        self.close()
        return self.fault

    def _save_before_stopping(self) -> None:
        """Whatever ended the run, its last whole step is worth keeping; else the older checkpoint stays."""
        try:
            self.save_within()
            self.folder.log(f"saved after epoch {self.epoch + 1}, step {self.steps_done}")
        except Exception as fault:
            with suppress(OSError):
                self.folder.log(f"not saved: {type(fault).__name__}: {fault}")

    def close(self) -> None:
        """Release tail, optimisers and trackers."""
        self.over = True
        self.lane = None
        self.trackers.close()


def _extremes(ranks: Ranks, marks: list[int]) -> tuple[list[int], list[int]]:
    """The largest of each mark over all ranks, and minus the smallest."""
    found = ranks.largest([*marks, *(-mark for mark in marks)])
    return found[: len(marks)], found[len(marks) :]


def _made_with(space: Workspace) -> dict[str, Any]:
    """What rounding depends on besides the config."""
    return {
        "torch": torch.__version__.partition("+")[0],
        "device": space.compute.describe(),
        "threads": torch.get_num_threads(),
        "processes": space.ranks.size,
        **({} if space.backbone_info.projection is None else {"projection": space.backbone_info.projection["hash"]}),
    }
