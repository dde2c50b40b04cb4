"""One run in training: how far it has come, what it saves, and its method. Several lanes may share trunk passes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from gcdbench.contracts import Batch, Progress
from gcdbench.errors import GcdbenchError
from gcdbench.prepare.opened_data import FileState, compare
from gcdbench.prepare.run_context import RunContext, build_method, run_pool
from gcdbench.records.record import Record
from gcdbench.records.run_directory import RunDirectory
from gcdbench.records.trackers import Trackers
from gcdbench.system.plugin_call import plugin_call
from gcdbench.system.seeding import AmbientStream, generator
from gcdbench.training import checkpoint
from gcdbench.training.agreement import agree
from gcdbench.training.batches import stages_of
from gcdbench.training.evaluate import Selected, evaluate
from gcdbench.training.lane_state import EpochState, LaneState
from gcdbench.training.method_trainer import MethodTrainer
from gcdbench.training.position import EpochPosition

LOOK = 2.0
"""Seconds between looks at the losses within an epoch; each look waits for the device."""


@dataclass(frozen=True)
class EpochResult:
    """What came of an epoch."""

    line: dict[str, Any]
    """Its line of `metrics.jsonl`."""
    selected: Selected | None
    """The predictions that count so far, where the selection rule wants them."""


class Lane:
    """Takes a run from its last checkpoint through its epochs, step by step, as the loop asks it to."""

    random: torch.Generator
    """Random numbers of the epoch's steps, given to the method."""
    ambient: AmbientStream
    """Torch's own random numbers during the epoch."""

    def __init__(self, ctx: RunContext, folder: RunDirectory, trackers: Trackers) -> None:
        self.ctx = ctx
        self.folder = folder
        self.trackers = trackers
        self.record: Record | None = None
        self.fault: GcdbenchError | None = None
        self.over = False
        """Finished or stopped."""
        self.ours = True
        """Whether the run is this process's: not while another one holds its lock."""
        self.at = EpochPosition()
        self.selected: Selected | None = None
        self.losses: dict[str, float] = {}
        """Means of the loss terms at the last look."""
        self.saves_within = True
        """Whether the run can resume from the middle of an epoch."""
        self.between_steps = False
        """Whether the run could be saved as it stands."""
        self.sharing = self.most_sharing = 1
        """Lanes that share this epoch's trunk passes, and the most that have shared an epoch."""
        self._trainer: MethodTrainer | None = None
        self._within: EpochState | None = None
        """What a checkpoint from the middle of an epoch says of that epoch, until it is resumed."""

    @property
    def trainer(self) -> MethodTrainer:
        """The method with its optimisers, from `resume` to `close`."""
        assert self._trainer is not None, "the run is not open"
        return self._trainer

    @property
    def is_open(self) -> bool:
        """Whether there is a method."""
        return self._trainer is not None

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.ctx.ranks.first

    def note(self, text: str) -> None:
        """Something that the record must say, whichever process writes it in the end."""
        self.ctx.notes.warnings.append(text)
        self.trackers.warn(text)

    # ---------------------------------------------------------------------------------------- start and resume

    def resume(self) -> None:
        """Build the method and restore what the last checkpoint holds."""
        ctx, ranks = self.ctx, self.ctx.ranks
        self._trainer = trainer = MethodTrainer(ctx.config.method, build_method(ctx), ctx.compute, ranks)
        found, notes = ranks.from_first(lambda: checkpoint.restore(self.folder.path, ctx.run_id))
        for text in notes:
            self.folder.log(text)
            self.trackers.warn(text)
        self.at = EpochPosition(stages_of(ctx, trainer.method))
        saved = None if found is None else LaneState.from_dict(found)
        if saved is not None:
            self._take(saved)
        elif notes:  # there was no rehearsal, since there seemed to be a checkpoint
            self.saves_within = False
        if not self.at.over:
            self._start_stage()
        if saved is not None:
            trainer.restore(saved.lane)
        self._advance()
        steps = self.at.epochs_done * ctx.sampler.steps + self.at.step
        self.trackers.start(self.folder.path, ctx.config.as_dict(), self.at.epochs_done, steps)

    def _take(self, saved: LaneState) -> None:
        self.at.number, self.at.epoch, self.at.step = saved.stage, saved.epoch, saved.step
        self.saves_within, self._within = saved.saves_within, saved.within
        self.selected = Selected.restore(saved.selected)
        for text in saved.notes:
            self.ctx.notes.add(text)
        # Another torch, device or number of threads rounds differently: allowed, but never silently.
        now, before = _made_with(self.ctx), saved.made_with
        other = [f"{name} {was} before, {now.get(name)} now" for name, was in before.items() if now.get(name) != was]
        if other:
            self.note(f"The run resumes under other conditions ({'; '.join(other)}), so not equal to the last bit.")
        if self.first:
            compare(FileState(saved.files), self.ctx.data.state, self.ctx.data.dataset.title, self.ctx.notes.add)

    def _advance(self) -> None:
        """To the next stage that has epochs left."""
        while self.at.stage_done:
            self.at.next_stage()
            if not self.at.over:
                self._start_stage()

    def _start_stage(self) -> None:
        stage = self.at.stage
        with AmbientStream(self.ctx.config.seed, "stage", stage.name):
            self.trainer.start_stage(stage)

    # -------------------------------------------------------------------------------------- an epoch and its steps

    def progress(self, step: int) -> Progress:
        """Where the run stands, as the method sees it."""
        stage = self.at.stage
        return Progress(stage.name, self.at.epoch, stage.epochs, step, self.ctx.sampler.steps, self.random)

    def start_epoch(self, sharing: int) -> None:
        """Set rates and let the method look at the pool; ``sharing`` lanes share this epoch."""
        ctx, trainer, at = self.ctx, self.trainer, self.at
        self._started = self._looked = time.monotonic()
        self.sharing = sharing
        self.most_sharing = max(self.most_sharing, sharing)
        names = (at.stage.name, at.epoch)
        self.random = generator(ctx.config.seed, "steps", *names, device=ctx.compute.device)
        self.ambient = AmbientStream(ctx.config.seed, "ambient", *names)
        if self._within is not None:
            self._resume_epoch(self._within)
        else:
            t = self.progress(0)
            trainer.start_epoch(t)
            trainer.method.eval()
            with self.ambient, torch.no_grad(), plugin_call(trainer.name, "on_epoch_start"):
                trainer.method.on_epoch_start(run_pool(ctx, ctx.config.eval.rows, *names), t)
        self._within = None
        trainer.method.train()
        self.between_steps = True

    def _resume_epoch(self, within: EpochState) -> None:
        """The epoch has begun in another process: only what it left is needed."""
        self._started -= within.seconds
        self.sharing = max(self.sharing, within.lanes)
        try:
            self.random.set_state(within.random)
        except (RuntimeError, TypeError):  # of another kind of device: its numbers cannot be had here
            names = ("steps", self.at.stage.name, self.at.epoch, "from", self.at.step)
            self.random = generator(self.ctx.config.seed, *names, device=self.ctx.compute.device)
            self.note(f"Random numbers of epoch {self.at.epoch + 1} are drawn again from step {self.at.step + 1} on.")
        self.ambient.restore(within.ambient)
        self.trainer.restore_sums(within.sums)

    def step(self, batch: Batch, number: int) -> None:
        """One optimiser step; now and then a look at the losses."""
        t = self.progress(number)
        self.between_steps = False
        with self.ambient:
            self.trainer.step(batch, t)
        self.at.step = number + 1
        self.between_steps = True
        now = time.monotonic()
        if self.first and now - self._looked > LOOK:  # a look waits for the device: one rank is enough
            self._looked = now
            self.losses = self.trainer.means()
            self.trackers.step(t, self.losses)

    def look_back(self) -> EpochResult:
        """Look at the epoch that has been trained: losses, agreement of ranks, and the evaluation if it is time."""
        trainer, stage = self.trainer, self.at.stage
        self.losses = trainer.means()
        trainer.require_finite(self.at.step - 1)
        agree(self)
        if self.first:
            self.ctx.check_files()
        line: dict[str, Any] = {
            "stage": stage.name,
            "epoch": self.at.epoch + 1,
            "losses": self.losses,
            "lr": trainer.learning_rates(),
            "seconds": round(time.monotonic() - self._started, 3),
        }
        if self.sharing > 1:
            line["lanes"] = self.sharing  # the seconds are those of all of them together
        selected = self.selected
        if self._evaluates():
            started = time.monotonic()
            line["metrics"], selected = evaluate(self.ctx, trainer.method, stage, self.at.epoch, selected)
            line["evaluation_seconds"] = round(time.monotonic() - started, 3)
        return EpochResult(line, selected)

    def _evaluates(self) -> bool:
        every = self.ctx.config.eval.every or (1 if self.ctx.rule.metric is not None else 0)
        epoch = self.at.epoch + 1
        return bool(every) and (epoch % every == 0 or epoch == self.at.stage.epochs)

    def end_epoch(self, result: EpochResult) -> None:
        """Write the epoch's line and the checkpoint, and move on; must not be interrupted in between."""
        self.between_steps = False
        self.selected = result.selected
        self.trackers.epoch(result.line)
        self.at.next_epoch()
        self._save(within=None)
        self._advance()

    # ------------------------------------------------------------------------------------------------------ saving

    def save_within(self) -> None:
        """A checkpoint in the middle of an epoch, from which the run resumes exactly where it stands."""
        if self.first:
            self.ctx.check_files()
        self.trainer.means()  # raises if a loss was not finite since the last look
        self.trainer.require_finite(self.at.step - 1)
        seconds = time.monotonic() - self._started
        sums = self.trainer.sums_state()
        self._save(EpochState(self.random.get_state(), self.ambient.state(), sums, seconds, self.sharing))

    def _save(self, within: EpochState | None) -> None:
        if not self.first:
            return
        self.require_folder()
        state = LaneState(
            run=self.ctx.run_id,
            made_with=_made_with(self.ctx),
            files=self.ctx.data.state.files,
            notes=list(self.ctx.notes.warnings),
            stage=self.at.number,
            epoch=self.at.epoch,
            step=self.at.step,
            lane=self.trainer.state(),
            selected=None if self.selected is None else self.selected.state(),
            saves_within=self.saves_within,
            within=within,
        )
        checkpoint.save(self.folder.path, state.as_dict())

    def require_folder(self) -> None:
        """The run directory may have been deleted meanwhile."""
        if not self.folder.is_run:
            raise GcdbenchError(f"The run directory {self.folder.path} has vanished while the run was being trained.")

    # -------------------------------------------------------------------------------------------------------- the end

    def take(self, record: Record) -> None:
        """The run is finished; by this process, or by another one before."""
        self.record = record
        self.close()

    def close(self) -> None:
        """Release tail, optimisers and trackers."""
        self.over = True
        self._trainer = None
        self.trackers.close()


def _made_with(ctx: RunContext) -> dict[str, Any]:
    """What rounding depends on besides the config."""
    return {
        "torch": torch.__version__.partition("+")[0],
        "device": ctx.compute.describe(),
        "threads": torch.get_num_threads(),
        "processes": ctx.ranks.size,
        **({} if ctx.backbone_info.projection is None else {"projection": ctx.backbone_info.projection["hash"]}),
    }
