"""Checks of K estimators."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gcdbench.config.resolve import Layer, RunConfig, resolve
from gcdbench.contracts import Dataset
from gcdbench.prepare.environment import RunEnvironment, StoreOptions
from gcdbench.prepare.estimate_k import Estimated, estimate_with
from gcdbench.prepare.request import dataset_layer
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.system.device import Compute
from gcdbench.testing.easy import NUM_BASE, EasyDigits, ShuffledDigits
from gcdbench.testing.kit import Failed, check

LARGEST = 20


@dataclass(frozen=True)
class _Nothing:
    """No method, no settings."""


def _estimate(subject: Any, dataset: type[Dataset] = EasyDigits, largest: int = LARGEST) -> Estimated:
    layers = [dataset_layer(dataset), Layer("the kit", {})]
    config: RunConfig = resolve(
        method="", dataset="digits", recipe="", seed=0, method_config=_Nothing, layers=layers
    ).config
    stores = StoreOptions(Path(tempfile.gettempdir()), packs=False)
    shared = SharedResources(RunEnvironment(root=Path("."), device="cpu", workers=0, store_options=stores))
    data = shared.data(dataset, config.data, False)
    ready = shared.opened(config, data, Compute(torch.device("cpu"), "fp32"))
    with tempfile.TemporaryDirectory() as kept:
        return estimate_with(subject.plugin, config, data, ready, Path(kept), largest)


@check(
    "k-estimator",
    "range",
    explains="The answer is a whole number from the base classes to the largest that is asked for, also "
    "when both are the same.",
    fix="Search from task.num_base to largest, both included.",
    needs=("describes-itself",),
)
def answer_is_in_range(subject: Any) -> None:
    """A wide and two narrow ranges; the core checks the answer."""
    for largest in (LARGEST, NUM_BASE + 1, NUM_BASE):
        _estimate(subject, largest=largest)


@check(
    "k-estimator",
    "deterministic",
    explains="The same data gives the same number.",
    fix="Take random numbers from pool.generator() or torch's global stream (which the harness sets).",
    needs=("range",),
)
def deterministic(subject: Any) -> None:
    """Twice, with all scores."""
    one, two = _estimate(subject), _estimate(subject)
    if (one.k, one.scores) != (two.k, two.scores):
        raise Failed(f"it answers {one.k} and then {two.k}, or other scores")


@check(
    "k-estimator",
    "hidden-labels",
    explains="Shuffling the labels that are hidden changes nothing.",
    fix="Use only what Pool and Task hold; targets are -1 where a label is hidden.",
    needs=("deterministic",),
)
def hidden_labels_do_not_matter(subject: Any) -> None:
    """The same images with other hidden labels."""
    one, two = _estimate(subject), _estimate(subject, ShuffledDigits)
    if (one.k, one.scores) != (two.k, two.scores):
        raise Failed(f"with other hidden labels it answers {two.k} instead of {one.k}, or other scores")
