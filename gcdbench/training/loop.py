"""The training loop: lanes in step on one stream of batches, one trunk pass per batch for all of them.

Faults, ranks and signals are three named layers around what is done for a lane: see `Guard`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

from gcdbench.errors import Terminated
from gcdbench.prepare.environment import CHECKPOINT_EVERY
from gcdbench.system.interrupts import Interrupts
from gcdbench.system.observer import Step
from gcdbench.system.parallel.communicator import Communicator
from gcdbench.training.batches import SharedBatch, step_batches
from gcdbench.training.isolation import Guard, alive
from gcdbench.training.lane import Lane

SHARE = 20
"""Training lasts at least this many times as long as saving did, however many lanes there are to save."""


def train(lanes: Sequence[Lane], guard: Guard, clock: Clock, finish: Callable[[Lane], None]) -> None:
    """Train every lane to its end. One that fails is stopped with its reason, and the others continue.

    All must look at the same batches (`gcdbench.runs.lane_groups`). ``finish`` predicts, scores and writes the record.
    """
    for lane in lanes:
        with guard(lane):
            lane.resume()  # build the method, load the last checkpoint
    finish_trained(lanes, guard, finish)  # methods without epochs end here
    if waiting := alive(lanes):
        guard.observer.started([lane.ctx.name for lane in waiting], min(lane.at.epochs_done for lane in waiting))
    while waiting := alive(lanes):
        behind = min(waiting, key=lambda lane: lane.at.epochs_done).at.name  # resumed lanes catch up first
        train_epoch([lane for lane in waiting if lane.at.name == behind], guard, clock)
        finish_trained(waiting, guard, finish)


def train_epoch(cohort: list[Lane], guard: Guard, clock: Clock) -> None:
    """One epoch of lanes that are equally far, or the rest of it; a lane joins at the step it has come to."""
    for lane in cohort:
        with guard(lane):
            lane.start_epoch(len(cohort))  # learning rates, method.on_epoch_start(pool)
    if not (lanes := alive(cohort)):
        return
    seen: Step | None = None
    with guard.shared(cohort), closing(epoch_batches(lanes)) as batches:
        for step, batch in batches:
            with guard.uninterrupted():
                for lane in alive(lanes):
                    if lane.at.step <= step:
                        with guard(lane), batch.lent_to(lane.ctx.config.method) as own:
                            lane.step(own, step)  # forward, backward, optimisers
            if not (lanes := alive(lanes)):
                return
            guard.observer.step(seen := _seen(lanes, step))
            if clock.due(guard.interrupts, guard.ranks):  # the first rank's clock; a signal to any rank counts for all
                save_all(lanes, guard, clock)
    for lane in alive(cohort):
        with guard(lane):
            result = lane.look_back()  # losses, evaluation
            with guard.uninterrupted():
                lane.end_epoch(result)  # metrics.jsonl, checkpoint
    clock.reset()
    if seen is not None and alive(cohort):
        guard.observer.epoch(seen)


def finish_trained(lanes: Sequence[Lane], guard: Guard, finish: Callable[[Lane], None]) -> None:
    """Lanes whose training has ended leave."""
    for lane in alive(lanes):
        if lane.at.over:
            guard.observer.phase(f"predicting and scoring {lane.ctx.config.method}")
            with guard(lane):
                finish(lane)


def save_all(lanes: Sequence[Lane], guard: Guard, clock: Clock) -> None:
    """A checkpoint of every lane within the epoch."""
    started = time.monotonic()
    with guard.uninterrupted():
        for lane in lanes:
            if lane.saves_within:
                with guard(lane):
                    lane.save_within()
    clock.reset(time.monotonic() - started)


class Clock:
    """When the next checkpoint within an epoch is due, by a monotonic clock."""

    def __init__(self, every: float = CHECKPOINT_EVERY) -> None:
        self.every = every
        self.reset()

    def reset(self, cost: float = 0.0) -> None:
        """One has been written, which took ``cost`` seconds."""
        self.next = time.monotonic() + max(self.every, SHARE * cost)

    def due(self, interrupts: Interrupts, ranks: Communicator) -> bool:
        """Whether it is time. With several ranks they agree here on that, and on signals that any of them has got."""
        late = time.monotonic() > self.next
        if ranks.alone:
            return late
        late_there, number = ranks.largest([int(late and ranks.first), interrupts.take()])
        if number:
            raise Terminated(number, agreed=True)
        return bool(late_there)


def epoch_batches(lanes: Sequence[Lane]) -> Generator[tuple[int, SharedBatch]]:
    """Batches of the epoch that these lanes train, from the first step that one of them needs."""
    at = lanes[0].at
    return step_batches(lanes[0].ctx, at.stage, at.epoch, min(lane.at.step for lane in lanes))


def _seen(lanes: Sequence[Lane], step: int) -> Step:
    """What an observer is shown."""
    at, steps = lanes[0].at, lanes[0].ctx.sampler.steps
    losses = [(lane.ctx.name, lane.losses) for lane in lanes]
    return Step(at.stage.name, at.epoch, at.stage.epochs, step, steps, at.epochs_done, losses)
