"""Operations per step, against counts made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gcdbench.prepare.plan import RunRequest, plan
from gcdbench.prepare.run_context import prepare
from gcdbench.runs.flops import flops_per_step
from gcdbench.system.device import Compute
from tests.support.runs import SMALL, start

pytestmark = pytest.mark.usefixtures("few_digits")

DIM, TOKENS, HIDDEN, CLASSES = 64, 17, 256, 10


def space(method: str, **settings):
    planned = plan(RunRequest(method, "digits", settings={"train.batch_size": 8, **settings}))
    return prepare(planned, planned.runs[0], Compute(torch.device("cpu"), "fp32"), Path("."))


def test_trunk_by_hand():
    """Three blocks on 16 views of 17 tokens, two operations per multiply-add, and the patch embedding."""
    made = space("rlcd")
    views = 2 * 8
    linear = DIM * 3 * DIM + DIM * DIM + 2 * DIM * HIDDEN
    attention = 2 * TOKENS * DIM
    blocks = 3 * views * TOKENS * (linear + attention)
    patches = views * (TOKENS - 1) * 3 * 4 * 4 * DIM
    assert flops_per_step(made, made.method())["trunk"] == 2 * (blocks + patches)


def test_method_by_hand():
    """Keys and values of all tokens, the rest for CLS alone; then heads and losses. Backward is twice as much."""
    made = space("simgcd", **SMALL)
    views = 2 * 8
    all_tokens = views * TOKENS * DIM * 2 * DIM
    read = views * (DIM * DIM + 2 * TOKENS * DIM + DIM * DIM + 2 * DIM * HIDDEN)
    heads = views * (DIM * 32 + 32 * 32 + 32 * 16 + DIM * CLASSES)
    pairs = 2 * views * views * 16  # similarities of both contrastive losses
    forward = 2 * (all_tokens + read + heads + pairs)
    assert flops_per_step(made, made.method())["method"] == 3 * forward


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
    made = space("rlcd")
    assert flops_per_step(made, made.method()) == {"trunk": 0, "method": 0}
