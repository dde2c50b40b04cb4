from __future__ import annotations

import dataclasses

import pytest

from gcdbench.config.protocol import Protocol, difference
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.shared_resources import SharedResources

BASE = Protocol("cub", "i", "s", "unlabelled", {"cluster_accuracy": 1}, 200, "true", "last")


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "scars"},
        {"index_hash": "j"},
        {"split_hash": "t"},
        {"scored_rows": "test"},
        {"evaluators": {"cluster_accuracy": 2}},
        {"k": 231},
        {"k_source": "given"},
        {"selection": "best-base-test"},
        {"reads": ("test labels",)},
    ],
)
def test_every_field_changes_the_fingerprint(change):
    other = dataclasses.replace(BASE, **change)
    assert other.fingerprint() != BASE.fingerprint()
    assert set(difference(BASE.as_dict(), other.as_dict())) == set(change)


def test_equal_protocols_have_equal_fingerprints():
    assert dataclasses.replace(BASE).fingerprint() == BASE.fingerprint()
    assert difference(BASE.as_dict(), BASE.as_dict()) == {}


# ------------------------------------------------------------------------- of whole runs, on the embedded data


def fingerprint(**asked):
    """The fingerprint a run would have."""
    from pathlib import Path

    from gcdbench.prepare.request import RunRequest, resolve_request
    from gcdbench.prepare.run_context import prepare_run

    method = asked.pop("method", "rlcd")
    planned = resolve_request(RunRequest(method, "digits", **asked))
    shared = SharedResources(RunEnvironment(root=Path("."), device="cpu"))
    return prepare_run(planned, planned.runs[0], shared).protocol.fingerprint()


@pytest.mark.parametrize(
    "asked",
    [
        {"label_ratio": 0.25},
        {"novel_ratio": 0.6},
        {"k": 12},
        {"k": 10},
        {"settings": {"eval.selection": "best-all-unlabelled"}},
    ],
    ids=str,
)
def test_what_is_listed_changes_the_fingerprint(asked):
    assert fingerprint(**asked) != fingerprint()


@pytest.mark.parametrize(
    "asked",
    [
        {"method": "simgcd"},
        {"recipe": "released"},
        {"seeds": (7,)},
        {"epochs": 3},
        {"precision": "bf16"},
        {"label_ratio": 0.5},
        {"novel_ratio": 0.5},
        {"settings": {"train.batch_size": 32}},
        {"settings": {"train.lr": 1.0}},
        {"settings": {"train.micro_batch": 1}},
        {"settings": {"method.alpha": 0.1}},
        {"settings": {"eval.every": 1}},
        {"settings": {"eval.batch_size": 8}},
        {"settings": {"backbone.weights": "random"}},
        {"settings": {"backbone.train_from": -2}},
        {"settings": {"views.resize": 20}},
    ],
    ids=str,
)
def test_what_is_not_listed_does_not(asked):
    assert fingerprint(**asked) == fingerprint()


def test_data_evaluators_and_what_a_method_reads_change_it(monkeypatch):
    from pathlib import Path

    import numpy as np
    from gcdbench_rlcd import RLCD

    from gcdbench.contracts import Traits
    from gcdbench.data.datasets.digits import Digits
    from gcdbench.evaluation.evaluators import ClusterAccuracy, Information

    plain = fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr(ClusterAccuracy, "version", 2)
        assert fingerprint() != plain
    with monkeypatch.context() as patch:  # not a headline number: it is not compared
        patch.setattr(Information, "version", 2)
        assert fingerprint() == plain
    with monkeypatch.context() as patch:
        patch.setattr(RLCD, "traits", Traits(reads=("test labels",)))
        assert fingerprint() != plain
    pixels, labels = Digits(Path("."))._data
    with monkeypatch.context() as patch:
        patch.setattr(Digits, "_data", (pixels[:-1], labels[:-1]))
        assert fingerprint() != plain
    with monkeypatch.context() as patch:
        changed = labels.copy()
        changed[-1] = (changed[-1] + 1) % 10
        patch.setattr(Digits, "_data", (pixels, changed))
        assert fingerprint() != plain
    with monkeypatch.context() as patch:
        patch.setattr(Digits, "_data", (pixels, np.array(labels)))
        assert fingerprint() == plain
