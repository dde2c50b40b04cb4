"""A run that is stopped anywhere and continued ends with the same bits as one that was not."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from gcdbench.contracts import Optim
from gcdbench.errors import TrainingError
from gcdbench.system.observer import Observer
from gcdbench.toolbox.optim import CosinePerEpoch
from gcdbench.training import checkpoint
from tests.support.lanes import assert_resumed_equal
from tests.support.runs import start

pytestmark = pytest.mark.usefixtures("few_digits")

CPU = torch.device("cpu")


class StopAt(Observer):
    """Ctrl-C after a step, or at the first evaluation after it."""

    def __init__(self, epoch, step):
        self.at = (epoch, step)

    def step(self, t):
        if (t.epoch, t.step) == self.at:
            raise KeyboardInterrupt


def stopped(tmp_path, *args, at, **more):
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, *args, observer=StopAt(*at), **more)


@pytest.fixture
def nervous(monkeypatch):
    """RLCD that draws from every source of randomness in every step, keeps extra state and has two optimisers."""
    from gcdbench_rlcd import RLCD

    forward, optimizers = RLCD.forward, RLCD.optimizers
    calls = []

    def nervous_forward(self, batch, t):
        calls.append((t.epoch, t.step))
        losses = forward(self, batch, t)
        noise = torch.rand(()) + torch.rand((), generator=t.generator) + np.random.rand() + np.random.standard_normal()
        noise = noise + random.gauss(0, 1) + len(self.__dict__.setdefault("seen", []))
        losses.add("noise", losses["main_ce"].value * noise, 0.01)
        self.seen.append(int(batch.index[0]))
        return losses

    def two(self, stage):
        main = optimizers(self, stage)["main"]
        adam = torch.optim.AdamW([self.aux_token], lr=0.01)
        for group in main.optimizer.param_groups:
            group["params"] = [p for p in group["params"] if p is not self.aux_token]
        return {"main": main, "aux": Optim(adam, CosinePerEpoch(1e-4))}

    monkeypatch.setattr(RLCD, "forward", nervous_forward)
    monkeypatch.setattr(RLCD, "optimizers", two)
    monkeypatch.setattr(RLCD, "get_extra_state", lambda self: {"seen": self.__dict__.get("seen", [])}, raising=False)
    monkeypatch.setattr(
        RLCD, "set_extra_state", lambda self, state: self.__dict__.update(seen=list(state["seen"])), raising=False
    )
    monkeypatch.setattr(RLCD, "active", lambda self, t: ("aux",) if t.step % 3 == 2 else ("main", "aux"))
    return calls


@pytest.mark.parametrize("at", [(0, 0), (0, 5), (1, 2), (2, 4)])
def test_everything_that_moves_is_restored(at, tmp_path, nervous):
    settings = {"eval.every": 1, "eval.selection": "best-all-unlabelled"}
    whole = start(tmp_path, where="whole", epochs=3, settings=settings)[0]
    stopped(tmp_path, at=at, epochs=3, settings=settings)
    folder = tmp_path / "runs/rlcd/digits" / whole.run_id
    saved = checkpoint.load(folder)
    assert (saved["epoch"], saved["step"]) == (at[0], at[1] + 1)
    nervous.clear()
    again = start(tmp_path, epochs=3, settings=settings)[0]
    assert nervous[0] == ((at[0] + 1, 0) if at[1] == 5 else (at[0], at[1] + 1))  # no step is made twice
    assert_resumed_equal(whole, again)
    assert again.selected == whole.selected


def test_stopped_after_every_single_step(tmp_path, nervous):
    whole = start(tmp_path, where="whole", epochs=2)[0]
    for epoch in range(2):
        for step in range(6):
            stopped(tmp_path, at=(epoch, step), epochs=2)
    assert_resumed_equal(whole, start(tmp_path, epochs=2)[0])


def test_stopped_while_evaluating_keeps_the_epoch(tmp_path, monkeypatch, nervous):
    from gcdbench_rlcd import RLCD

    settings = {"eval.every": 1}
    whole = start(tmp_path, where="whole", settings=settings)[0]
    original, calls = RLCD.predict, []

    def predict(self, pool):
        calls.append(1)
        if len(calls) == 2:  # the first is the rehearsal's
            raise KeyboardInterrupt
        return original(self, pool)

    with monkeypatch.context() as patch:
        patch.setattr(RLCD, "predict", predict)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path, settings=settings)
    nervous.clear()
    again = start(tmp_path, settings=settings)[0]
    assert nervous[0] == (1, 0)  # all steps of the first epoch were kept
    assert_resumed_equal(whole, again)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_loss_scale_goes_on(precision, tmp_path, nervous):
    whole = start(tmp_path, where="whole", precision=precision)[0]
    stopped(tmp_path, at=(1, 3), precision=precision)
    assert_resumed_equal(whole, start(tmp_path, precision=precision)[0])


def test_stored_views_go_on_in_the_middle_of_an_epoch(tmp_path, nervous):
    more = {"settings": {"store.train_views": 3}, "cache": tmp_path / "cache"}
    whole = start(tmp_path, where="whole", **more)[0]
    stopped(tmp_path, at=(0, 2), **more)
    assert_resumed_equal(whole, start(tmp_path, **more)[0])


def test_lanes_at_different_steps_catch_up_and_share_from_there(tmp_path, monkeypatch):
    from gcdbench.backbone.vit import Trunk

    both = "rlcd:paper,rlcd:released"
    whole = start(tmp_path, both, "whole", epochs=3)
    stopped(tmp_path, "rlcd", recipe="paper", at=(1, 1), epochs=3)
    stopped(tmp_path, "rlcd", recipe="released", at=(1, 3), epochs=3)
    passes, original = [], Trunk.raw
    monkeypatch.setattr(Trunk, "raw", lambda self, x: passes.append(len(x)) or original(self, x))
    again = start(tmp_path, both, epochs=3)
    for one, two in zip(whole, again, strict=True):
        assert_resumed_equal(one, two)
    # From step 2 of the second epoch to the end, once for both; the evaluation's passes are of 400 rows in chunks.
    assert passes.count(128) - 2 - 3 == 4 + 6  # two to count operations, three whole chunks of the evaluation


def test_checkpoints_within_an_epoch(tmp_path, monkeypatch, nervous):
    saves, original = [], checkpoint.save

    def save(folder, state):
        saves.append((state["epoch"], state["step"]))
        original(folder, state)

    monkeypatch.setattr(checkpoint, "save", save)
    whole = start(tmp_path, where="never", epochs=2, checkpoint_every=1e9)[0]
    assert saves == [(1, 0), (2, 0)]
    saves.clear()
    monkeypatch.setattr("gcdbench.training.loop.SHARE", 0)
    often = start(tmp_path, where="always", epochs=2, checkpoint_every=0)[0]
    assert saves == [*((0, s) for s in range(1, 7)), (1, 0), *((1, s) for s in range(1, 7)), (2, 0)]
    assert_resumed_equal(whole, often)


def test_another_setting_is_another_run_and_never_a_continuation(tmp_path):
    stopped(tmp_path, at=(0, 3))
    first = start(tmp_path, where="other", settings={"method.alpha": 0.25})[0]
    second = start(tmp_path, settings={"method.alpha": 0.25})[0]
    assert_resumed_equal(first, second)
    assert len(list((tmp_path / "runs/rlcd/digits").iterdir())) == 2


def test_other_conditions_are_noted(tmp_path):
    stopped(tmp_path, at=(0, 3))
    (folder,) = (tmp_path / "runs/rlcd/digits").iterdir()
    state = checkpoint.load(folder)
    checkpoint.save(folder, {**state, "made_with": {**state["made_with"], "torch": "1.0"}})
    record = start(tmp_path)[0]
    assert any("torch 1.0 before" in note for note in record.warnings)


def test_the_seconds_of_both_parts_count(tmp_path):
    stopped(tmp_path, at=(0, 3))
    (folder,) = (tmp_path / "runs/rlcd/digits").iterdir()
    state = checkpoint.load(folder)
    state["within"]["seconds"] += 1000.0
    checkpoint.save(folder, state)
    record = start(tmp_path)[0]
    line = json.loads((Path(record.dir) / "metrics.jsonl").read_text().splitlines()[0])
    assert 1000 < line["seconds"] < 1100


def test_notes_of_every_part_reach_the_record(tmp_path):
    """Three processes, the second under other conditions: whoever writes the record must say so."""
    stopped(tmp_path, at=(0, 3))
    (folder,) = (tmp_path / "runs/rlcd/digits").iterdir()
    state = checkpoint.load(folder)
    checkpoint.save(folder, {**state, "made_with": {**state["made_with"], "threads": 77}})
    stopped(tmp_path, at=(1, 3))
    assert checkpoint.load(folder)["made_with"]["threads"] != 77
    record = start(tmp_path)[0]
    assert len([note for note in record.warnings if "threads 77 before" in note]) == 1


def test_a_run_from_another_kind_of_device_is_resumed(tmp_path):
    """The state of a GPU's random numbers is shorter; the run continues with new ones and says so."""
    stopped(tmp_path, at=(0, 3))
    (folder,) = (tmp_path / "runs/rlcd/digits").iterdir()
    state = checkpoint.load(folder)
    state["within"]["random"] = torch.zeros(16, dtype=torch.uint8)
    state["made_with"]["device"] = "cuda (Some GPU)"
    checkpoint.save(folder, state)
    record = start(tmp_path)[0]
    assert any("device cuda (Some GPU) before, cpu now" in note for note in record.warnings)
    assert any("are drawn again from step 5" in note for note in record.warnings)


def test_switches_that_a_method_turns_stay_turned(tmp_path, monkeypatch):
    """A method that sets a default type in one step finds it in the next, in another process too."""
    from gcdbench_rlcd import RLCD

    original, seen = RLCD.forward, []

    def forward(self, batch, t):
        seen.append((t.epoch, t.step, torch.get_default_dtype()))
        losses = original(self, batch, t)
        if t.step == 2:
            torch.set_default_dtype(torch.float64)
        return losses

    monkeypatch.setattr(RLCD, "forward", forward)
    stopped(tmp_path, at=(0, 3), epochs=1)
    seen.clear()
    start(tmp_path, epochs=1)
    assert seen[0] == (0, 4, torch.float64)
    assert torch.get_default_dtype() is torch.float32


def test_memory_that_runs_out_while_a_checkpoint_is_read_is_no_reason_to_delete_it(tmp_path, monkeypatch):
    stopped(tmp_path, at=(0, 3))

    def full(*_, **__):
        raise torch.OutOfMemoryError("pretend")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", full)
        with pytest.raises(TrainingError, match="Out of memory") as fault:
            start(tmp_path)
    assert "Delete" not in str(fault.value)
    assert start(tmp_path)[0].metrics


def test_a_fault_of_what_all_lanes_share_is_a_sentence(tmp_path, monkeypatch):
    """Memory that runs out while images are cut, in the threads that read them."""
    from gcdbench.data import stream

    original, calls = stream.plan_crops, []

    def cut(*arguments):
        calls.append(1)
        if len(calls) > 12:
            raise MemoryError
        return original(*arguments)

    whole = start(tmp_path, where="whole")[0]
    with monkeypatch.context() as patch:
        patch.setattr(stream, "plan_crops", cut)
        with pytest.raises(TrainingError, match="Out of memory in the run of 'rlcd'"):
            start(tmp_path)
    assert_resumed_equal(whole, start(tmp_path)[0])
