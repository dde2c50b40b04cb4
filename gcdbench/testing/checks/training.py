"""Checks of whole short runs: the same twice, interrupted, in lanes, and without a look at hidden labels."""

from __future__ import annotations

from typing import Any

from gcdbench.system.observer import Step
from gcdbench.system.state_diff import difference
from gcdbench.testing.easy import ShuffledDigits
from gcdbench.testing.kit import Failed, check
from gcdbench.testing.lab import Trained


def _different(one: Trained, two: Trained) -> str | None:
    """What differs first; state before predictions, since it explains more."""
    return difference(one.plain(), two.plain(), "run")


@check(
    "method",
    "deterministic",
    explains="The same run gives the same losses, weights and predictions to the last bit.",
    fix="Take random numbers from task.generator, Progress.generator and pool.generator() or from "
    "torch's global stream (which the harness sets), never from the clock or an unseeded "
    "generator; do not iterate over sets.",
    needs=("prediction-repeats",),
)
def deterministic(lab: Any) -> None:
    """The same run twice."""
    changed = _different(lab.reference, lab.train(lab.ctx())[0])
    if changed is not None:
        raise Failed(f"a second run differs in {changed}")


@check(
    "method",
    "hidden-labels",
    explains="Shuffling the labels that are hidden changes nothing at all: a method must not find a way to read them.",
    fix="Use only what Batch, Pool and Task hold; their targets are -1 where a label is hidden.",
    needs=("deterministic",),
)
def hidden_labels_do_not_matter(lab: Any) -> None:
    """The same run on the same images with other hidden labels."""
    changed = _different(lab.reference, lab.train(lab.ctx(dataset=ShuffledDigits))[0])
    if changed is not None:
        raise Failed(f"with other hidden labels the run differs in {changed}")


@check(
    "method",
    "evaluation-changes-nothing",
    explains="A run that is evaluated after every epoch ends with the same bits as one that is not.",
    fix="Let predict leave nothing behind, neither state nor attributes that forward reads.",
    needs=("deterministic", "losses"),
    after=("prediction-keeps-state",),
)
def evaluated_after_every_epoch(lab: Any) -> None:
    """The same run with a prediction after each epoch."""
    changed = _different(lab.reference, lab.train(lab.ctx(settings={"eval.every": 1}))[0])
    if changed is not None:
        raise Failed(f"evaluated after every epoch, the run differs in {changed}")


@check(
    "method",
    "resumes",
    explains="A run that is stopped in the middle of an epoch and continued by a new instance, after other runs, ends "
    "with the same bits.",
    fix="Keep what lasts from one call to the next in parameters, buffers or get_extra_state, also "
    "what on_epoch_start leaves for the steps.",
    needs=("deterministic", "losses"),
)
def interrupted_and_resumed(lab: Any) -> None:
    """Stopped within the last epoch of the last stage; and in the first one."""
    last = sum(stage.epochs for stage in lab.stages) - 1
    for epoch in dict.fromkeys((0, last)):

        def stop(step: Step, at: int = epoch) -> bool:
            return step.epochs_done == at and step.step == 1

        changed = _different(lab.reference, lab.train(lab.ctx(), stop=stop)[0])
        if changed is not None:
            raise Failed(f"stopped in epoch {epoch + 1} and continued, the run differs in {changed}")


@check(
    "method",
    "lanes",
    explains="Trained beside other runs on the same batches, a run ends with the same bits as alone.",
    fix="Keep everything on the instance: nothing on the class, in the module or in a cache that instances share.",
    needs=("deterministic", "losses"),
)
def lane_equals_alone(lab: Any) -> None:
    """Beside a run of the same method with another learning rate."""
    rate = lab.usual.config.train.lr
    both = lab.train(lab.ctx(settings={"train.lr": rate / 2}), lab.ctx())
    changed = _different(lab.reference, both[1])
    if changed is not None:
        raise Failed(f"in a lane beside another run it differs in {changed}")


@check(
    "method",
    "ranks",
    explains="Trained on two ranks, which share the rows of every batch, a run has the losses and predictions of one.",
    fix="Give batch.tokens to the tail and to nothing else, or pass what a network of your own makes of them through "
    "gcdbench.whole_batch; draw no random numbers inside the tail; cluster in pool.once.",
    needs=("deterministic", "losses"),
    after=("hidden-labels", "evaluation-changes-nothing", "resumes", "lanes"),
)
def ranks_agree(lab: Any) -> None:
    """The usual run on two ranks: equal but for rounding, since sums have another order."""
    one, two = lab.reference, lab.train_on_ranks(2, lab.ctx())
    for number, (alone, shared) in enumerate(zip(one.lines, two.lines, strict=True), 1):
        for name, value in alone["losses"].items():
            other = shared["losses"].get(name)
            if other is None or abs(other - value) > 1e-3 * max(abs(value), 1e-2):
                raise Failed(f"on two ranks the loss {name} of epoch {number} is {other} instead of {value}")
    moved = (one.prediction.cluster != two.prediction.cluster).mean()
    if moved > 0.01:
        raise Failed(f"on two ranks {moved:.1%} of the rows are predicted differently")
