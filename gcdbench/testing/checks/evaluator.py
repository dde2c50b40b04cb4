"""Checks of evaluators."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from gcdbench.contracts import Prediction, Truth
from gcdbench.testing.kit import Failed, NotApplicable, check

BASE, CLASSES = 3, 6


def _cases() -> Iterator[tuple[str, Truth, Prediction]]:
    """Ordinary and odd answers."""
    random = np.random.default_rng(0)
    target = random.integers(CLASSES, size=120)
    yield "a perfect answer", *_case(target, target.copy())
    yield "a random answer", *_case(target, random.integers(CLASSES, size=120))
    yield "one cluster for all rows", *_case(target, np.zeros(120, dtype=np.int64))
    yield "more clusters than classes", *_case(target, random.integers(40, size=120))
    yield "a single row", *_case(target[:1], target[:1])
    yield "base rows only", *_case(target[target < BASE], target[target < BASE])
    yield "novel rows only", *_case(target[target >= BASE], target[target >= BASE])


def _case(target: np.ndarray, cluster: np.ndarray) -> tuple[Truth, Prediction]:
    confidence = np.linspace(0.1, 1, len(cluster), dtype=np.float32)
    base = {"main": (cluster % BASE).astype(np.int64)}
    return Truth(target, BASE, CLASSES), Prediction(cluster.astype(np.int64), confidence, base)


@check(
    "evaluator",
    "numbers",
    explains="It gives named numbers, for ordinary and for odd answers; one that cannot be had is left out or NaN.",
    fix="Return a dict of floats; mind empty sets, a single row and more clusters than classes.",
    needs=("describes-itself",),
)
def gives_numbers(subject: Any) -> None:
    """All cases."""
    for what, truth, prediction in _cases():
        found = subject.cls()(truth, prediction)
        if not isinstance(found, dict):
            raise Failed(f"for {what} it returned {type(found).__name__} instead of a dict")
        for name, value in found.items():
            if not isinstance(name, str) or not isinstance(value, float | int | np.floating | np.integer):
                raise Failed(f"for {what} it gave {name!r}: {value!r}, which is no named number")
            if math.isinf(float(value)):
                raise Failed(f"for {what} '{name}' is infinite")


@check(
    "evaluator",
    "deterministic",
    explains="The same answer gets the same numbers.",
    fix="Use no random numbers, or a generator with a fixed seed.",
    needs=("numbers",),
)
def deterministic(subject: Any) -> None:
    """All cases, twice."""
    for what, truth, prediction in _cases():
        one, two = subject.cls()(truth, prediction), subject.cls()(truth, prediction)
        if repr(one) != repr(two):
            raise Failed(f"for {what} it gives other numbers the second time")


@check(
    "evaluator",
    "inputs-untouched",
    explains="Truth and prediction are not changed: other evaluators look at them, too.",
    fix="Work on copies.",
    needs=("numbers",),
)
def inputs_are_not_changed(subject: Any) -> None:
    """Arrays before and after."""
    for what, truth, prediction in _cases():
        kept = copy.deepcopy((truth.target, prediction.cluster, prediction.confidence, prediction.base["main"]))
        subject.cls()(truth, prediction)
        now = (truth.target, prediction.cluster, prediction.confidence, prediction.base["main"])
        if any(not np.array_equal(a, b) for a, b in zip(kept, now, strict=True)):  # type: ignore[arg-type]
            raise Failed(f"for {what} it changed its input")


@check(
    "evaluator",
    "names-do-not-matter",
    explains="A number that is compared between methods (headline) does not depend on how novel clusters are numbered.",
    fix="Match clusters to classes first (gcdbench.toolbox.cluster_accuracy.assign).",
    needs=("deterministic",),
)
def names_of_clusters_do_not_matter(subject: Any) -> None:
    """The numbers of novel clusters exchanged."""
    if not subject.cls.headline:
        raise NotApplicable("its numbers are not compared between methods")
    random = np.random.default_rng(1)
    target = random.integers(CLASSES, size=120)
    cluster = np.where(random.random(120) < 0.7, target, random.integers(CLASSES, size=120))
    swap = np.array([*range(BASE), *reversed(range(BASE, CLASSES))])
    truth, prediction = _case(target, cluster)
    one, two = (subject.cls()(truth, replace(prediction, cluster=answer)) for answer in (cluster, swap[cluster]))
    odd = next((name for name in one if not np.isclose(one[name], two[name], equal_nan=True)), None)
    if odd is not None:
        raise Failed(f"'{odd}' is {one[odd]:.3f}, and {two[odd]:.3f} after novel clusters were renumbered")
