"""The training loop: lanes in step on one stream of batches, one trunk pass per batch for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice

from gcdbench.contracts import Batch, Progress
from gcdbench.data.views import ViewPlan
from gcdbench.errors import PluginError, RankLost
from gcdbench.system.interrupts import Interrupts, agreed, interruption
from gcdbench.system.observer import Reporter
from gcdbench.system.parallel.communicator import ALONE, Ranks, is_settled
from gcdbench.training.batches import batches, epoch_plans
from gcdbench.training.lane import Runner

CHECKPOINT_EVERY = 300.0
"""Seconds between checkpoints within an epoch, unless the user says otherwise; each epoch ends with one anyway."""
SHARE = 20
"""Training lasts at least so many times as long as saving did, however many lanes there are to save."""


class Pace:
    """When the next checkpoint within an epoch is due, by a clock that nobody can set."""

    def __init__(self, every: float) -> None:
        self.every = every
        self.reset()

    def reset(self, cost: float = 0.0) -> None:
        """One has been written, which took so many seconds."""
        self.due = time.monotonic() + max(self.every, SHARE * cost)


def train_together(
    runners: Sequence[Runner],
    reporter: Reporter,
    checkpoint_every: float = CHECKPOINT_EVERY,
    interrupts: Interrupts | None = None,
) -> None:
    """Train every runner to its record. One that fails is stopped with its reason, and the others go on.

    All must look at the same batches (`gcdbench.runs.lane_groups`). Those that are behind, because they were
    interrupted earlier, catch up first; from then on they share trunk passes.
    """
    interrupts, pace = interrupts or Interrupts(), Pace(checkpoint_every)
    ranks = runners[0].space.ranks if runners else ALONE
    with nullcontext() if ranks.alone else interrupts.held():
        _train(runners, reporter, pace, interrupts)


def _train(runners: Sequence[Runner], reporter: Reporter, pace: Pace, interrupts: Interrupts) -> None:
    for runner in runners:
        attempt(runner, runner.open, reporter)
    for runner in _alive(runners):
        if runner.position is None:
            _finish(runner, reporter)
    if _alive(runners):
        reporter.started([r.space for r in _alive(runners)], min(r.epochs_done for r in _alive(runners)))
    while waiting := _alive(runners):
        behind = min(waiting, key=lambda r: r.epochs_done).position
        cohort = [r for r in waiting if r.position == behind]
        _epoch(cohort, reporter, pace, interrupts)
        for runner in _alive(cohort):
            if runner.position is None:
                _finish(runner, reporter)


def _alive(runners: Iterable[Runner]) -> list[Runner]:
    return [r for r in runners if not r.over]


def attempt(runner: Runner, action: Callable[[], object], reporter: Reporter) -> None:
    """Do something for one lane, on all ranks; what it does wrong on any of them ends this lane alone."""
    try_alone(runner, lambda: runner.space.ranks.together(action), reporter)


def try_alone(runner: Runner, action: Callable[[], object], reporter: Reporter) -> None:
    """Do something for one lane on this rank; what it does wrong ends this lane alone."""
    try:
        action()
    except RankLost:
        raise
    except Exception as fault:  # a plugin, a full disk: the others must not suffer for it
        reporter.dropped(runner.space, runner.stop(fault))


def _finish(runner: Runner, reporter: Reporter) -> None:
    reporter.phase(f"predicting and scoring {runner.space.config.method}")
    attempt(runner, runner.finish, reporter)


def _epoch(cohort: Sequence[Runner], reporter: Reporter, pace: Pace, interrupts: Interrupts) -> None:
    """One epoch of lanes that are equally far, or the rest of it; a lane joins at the step it has come to."""
    for runner in cohort:
        attempt(runner, partial(runner.start_epoch, len(cohort)), reporter)
    lanes = _alive(cohort)
    if not lanes:
        return
    space = lanes[0].space
    stage, epoch = lanes[0].stages[lanes[0].stage_number], lanes[0].epoch
    first = min(runner.steps_done for runner in lanes)
    t: Progress | None = None
    ranks = space.ranks
    stream = batches(space, islice(epoch_plans(space, stage, epoch), first, None), ranks)
    try:
        for step, (plan, batch) in enumerate(_together(stream, ranks), first):
            with interrupts.deferred():
                for runner in lanes:
                    if runner.steps_done <= step:
                        t = runner.progress(step)
                        batch = _step(runner, plan, batch, step, reporter)
            lanes = _alive(lanes)
            if not lanes or t is None:
                break
            reporter.step(t, lanes)
            if _due(pace, interrupts, ranks):
                _save(lanes, reporter, pace, interrupts)
                lanes = _alive(lanes)
                if not lanes:
                    break
    except RankLost:
        raise
    except Exception as fault:  # the images or the trunk, which all of them need
        if not ranks.alone and not is_settled(fault):
            raise RankLost(f"One of the processes has failed alone: {fault}") from fault
        for runner in _alive(lanes):
            reporter.dropped(runner.space, runner.stop(fault))
        return
    finally:
        stream.close()
    for runner in lanes:
        attempt(runner, partial(runner.end_epoch, interrupts.deferred()), reporter)
    pace.reset()
    if t is not None and _alive(lanes):
        reporter.epoch(t, _alive(lanes))


def _together(stream: Iterator[tuple[ViewPlan, Batch]], ranks: Ranks) -> Iterator[tuple[ViewPlan, Batch]]:
    """The batches; what one rank cannot read or compute is the fault of all."""
    while (found := ranks.together(lambda: next(stream, None))) is not None:
        yield found


def _due(pace: Pace, interrupts: Interrupts, ranks: Ranks) -> bool:
    """Whether it is time for a checkpoint. Of several ranks the first one's clock counts, and a signal to any of them
    is raised on all, after the same step."""
    late = time.monotonic() > pace.due
    if ranks.alone:
        return late
    late_there, number = ranks.largest([int(late and ranks.first), interrupts.take()])
    if number:
        raise agreed(interruption(number))
    return bool(late_there)


def _save(lanes: Sequence[Runner], reporter: Reporter, pace: Pace, interrupts: Interrupts) -> None:
    """A checkpoint of every lane within the epoch."""
    started = time.monotonic()
    with interrupts.deferred():
        for runner in lanes:
            if runner.saves_within:
                attempt(runner, runner.save_within, reporter)
    pace.reset(time.monotonic() - started)


def _step(runner: Runner, plan: ViewPlan, batch: Batch, step: int, reporter: Reporter) -> Batch:
    """A step of one lane. The batch belongs to all: a lane that writes into it is stopped, and the batch made anew."""
    before = _versions(batch)
    attempt(runner, lambda: runner.step(batch, step), reporter)
    if _versions(batch) == before:
        return batch

    def blame() -> None:
        raise PluginError(
            f"The method '{runner.space.config.method}' changed the tensors of its batch in place. "
            "They are shared by all lanes: work on a copy."
        )

    if not runner.over:
        attempt(runner, blame, reporter)
    ranks = runner.space.ranks
    return next(_together(batches(runner.space, [plan], ranks), ranks))[1]


def _versions(batch: Batch) -> tuple[int, ...]:
    """Counts of in-place changes."""
    return tuple(t._version for t in (batch.tokens, batch.target, batch.labelled, batch.index))
