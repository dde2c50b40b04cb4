"""What would fail later fails before training, and leaves nothing but a log."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from gcdbench.contracts import Prediction, Stage
from gcdbench.errors import GcdbenchError, PluginError, TrainingError
from gcdbench.system import files
from gcdbench.system.observer import Observer
from tests.support.lanes import alone, assert_equal_runs, together
from tests.support.runs import start

pytestmark = pytest.mark.usefixtures("few_digits")


class Count(Observer):
    """Steps of real training."""

    def __init__(self):
        self.steps = 0

    def step(self, t):
        self.steps += 1


def fails_before_training(tmp_path, kind, words, **more):
    count = Count()
    with pytest.raises(kind, match=words) as fault:
        start(tmp_path, observer=count, **more)
    assert count.steps == 0
    files = [p for p in (tmp_path / "runs").rglob("*") if p.is_file()]
    assert {p.name for p in files} <= {"log.txt", "failed.json"}
    return fault.value


def oops(*_, **__):
    raise ZeroDivisionError("oops")


@pytest.mark.parametrize(
    "hook", ["stages", "optimizers", "on_epoch_start", "forward", "active", "on_step_end", "predict"]
)
def test_every_hook_is_tried(hook, tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    monkeypatch.setattr(RLCD, hook, oops)
    fault = fails_before_training(tmp_path, PluginError, f"failed in {hook}: ZeroDivisionError: oops")
    assert fault.exit_code == 5


@pytest.mark.parametrize(
    ("hook", "value", "words"),
    [
        ("get_extra_state", lambda self: {"f": Path("x")}, "get_extra_state may hold tensors"),
        ("get_extra_state", lambda self: {"f": np.zeros(3)}, "get_extra_state may hold tensors"),
        ("get_extra_state", lambda self: {"f": lambda: 1}, "failed in state_dict"),
        ("get_extra_state", lambda self: torch.rand(1), "does not survive a checkpoint"),
        ("set_extra_state", oops, "failed in load_state_dict: ZeroDivisionError"),
    ],
)
def test_state_that_cannot_be_saved_or_read_is_noticed(hook, value, words, tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    monkeypatch.setattr(RLCD, "get_extra_state", lambda self: {"x": 1}, raising=False)
    monkeypatch.setattr(RLCD, "set_extra_state", lambda self, state: None, raising=False)
    monkeypatch.setattr(RLCD, hook, value, raising=False)
    fails_before_training(tmp_path, GcdbenchError, words)


def test_later_stages_are_tried_too(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    original = RLCD.forward

    def forward(self, batch, t):
        if t.stage == "second":
            raise KeyError("teacher")
        return original(self, batch, t)

    monkeypatch.setattr(RLCD, "stages", lambda self: (Stage("first", 1), Stage("second", 1)))
    monkeypatch.setattr(RLCD, "forward", forward)
    fails_before_training(tmp_path, PluginError, "failed in forward: KeyError: 'teacher'")
    monkeypatch.setattr(RLCD, "stages", lambda self: (Stage("one", 1), Stage("one", 1)))
    fails_before_training(tmp_path, PluginError, "two stages of the same name")


def test_a_wrong_answer_is_noticed(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    monkeypatch.setattr(RLCD, "predict", lambda self, pool: Prediction(np.zeros(len(pool), dtype=np.int64)))
    fails_before_training(tmp_path, PluginError, r"shape \(64,\) and type int64; 3\d whole numbers")


def test_a_loss_that_is_not_finite_from_the_start(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    original = RLCD.forward

    def forward(self, batch, t):
        losses = original(self, batch, t)
        losses.add("odd", losses["main_ce"].value / 0)
        return losses

    monkeypatch.setattr(RLCD, "forward", forward)
    fails_before_training(tmp_path, TrainingError, "'odd' of 'rlcd' is not finite at step 1")


def test_room_on_the_disk_is_asked_for(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage._replace(free=1_500_000))
    fault = fails_before_training(tmp_path, GcdbenchError, r"1 run would take 2\.\d+ MB for checkpoints and")
    assert "only 1.5 MB free" in str(fault)


def test_a_disk_that_cannot_be_written_is_noticed(tmp_path, monkeypatch):
    from gcdbench.training import checkpoint

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system", "somewhere")

    monkeypatch.setattr(checkpoint, "write_atomically", refuse)
    fault = fails_before_training(tmp_path, GcdbenchError, "somewhere: Read-only file system")
    assert "choose another folder with --runs" in str(fault)


def test_a_rehearsal_that_fails_ends_its_own_lane_only(tmp_path, monkeypatch, small_projector):
    from gcdbench_rlcd import RLCD

    original = RLCD.on_epoch_start

    def fail(self, pool, t):
        if self.config.pseudo_base != "predicted":
            oops()
        return original(self, pool, t)

    with monkeypatch.context() as patch:
        patch.setattr(RLCD, "on_epoch_start", fail)
        with pytest.raises(PluginError, match="1 of 2 runs failed"):
            together(tmp_path, "rlcd:released,rlcd:paper")
    kept = alone(tmp_path, "rlcd:paper", "lanes")
    assert_equal_runs(kept, alone(tmp_path, "rlcd:paper"))


def test_a_run_that_goes_on_is_not_rehearsed(tmp_path, monkeypatch):
    from gcdbench.runs import rehearsal

    class Stop(Observer):
        def step(self, t):
            if t.step == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, observer=Stop())
    monkeypatch.setattr(rehearsal.Rehearsal, "of", oops)
    assert start(tmp_path)[0].metrics
