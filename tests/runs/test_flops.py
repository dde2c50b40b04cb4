"""Operations per step, against counts made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.request import RunRequest, resolve_request
from gcdbench.prepare.run_context import build_method, prepare_run
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.runs.flops import flops_per_step
from tests.support.runs import SMALL, start

pytestmark = pytest.mark.usefixtures("few_digits")

DIM, TOKENS, HIDDEN, CLASSES = 64, 17, 256, 10


def ctx(method: str, **settings):
    planned = resolve_request(RunRequest(method, "digits", settings={"train.batch_size": 8, **settings}))
    return prepare_run(planned, planned.runs[0], SharedResources(RunEnvironment(root=Path("."), device="cpu")))


def test_trunk_by_hand():
    """Three blocks on 16 views of 17 tokens, two operations per multiply-add, and the patch embedding."""
    made = ctx("rlcd")
    views = 2 * 8
    linear = DIM * 3 * DIM + DIM * DIM + 2 * DIM * HIDDEN
    attention = 2 * TOKENS * DIM
    blocks = 3 * views * TOKENS * (linear + attention)
    patches = views * (TOKENS - 1) * 3 * 4 * 4 * DIM
    assert flops_per_step(made, build_method(made))["trunk"] == 2 * (blocks + patches)


def test_method_by_hand():
    """Keys and values of all tokens, the rest for CLS alone; then heads and losses. Backward is twice as much."""
    made = ctx("simgcd", **SMALL)
    views = 2 * 8
    all_tokens = views * TOKENS * DIM * 2 * DIM
    read = views * (DIM * DIM + 2 * TOKENS * DIM + DIM * DIM + 2 * DIM * HIDDEN)
    heads = views * (DIM * 32 + 32 * 32 + 32 * 16 + DIM * CLASSES)
    pairs = 2 * views * views * 16  # similarities of both contrastive losses
    forward = 2 * (all_tokens + read + heads + pairs)
    assert flops_per_step(made, build_method(made))["method"] == 3 * forward


def test_counting_changes_no_result(tmp_path, monkeypatch):
    """It happens after the predictions: without it every number is the same."""
    with_count = start(tmp_path, where="a", epochs=1)[0]
    from gcdbench.runs import finish as recording

    monkeypatch.setattr(recording, "flops_per_step", lambda *_: 1 / 0)
    without = start(tmp_path, where="b", epochs=1)[0]
    assert with_count.metrics == without.metrics
    assert without.flops_per_step is None
    assert any("could not be counted (ZeroDivisionError" in w for w in without.warnings)


def test_a_method_without_training(monkeypatch):
    from gcdbench_rlcd import RLCD

    monkeypatch.setattr(RLCD, "stages", lambda self: ())
    made = ctx("rlcd")
    assert flops_per_step(made, build_method(made)) == {"trunk": 0, "method": 0}
