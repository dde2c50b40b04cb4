"""Trackers follow a run, survive a resume, and never stop it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gcdbench.contracts import Tracker
from gcdbench.errors import PluginError, UsageError
from gcdbench.records import trackers
from gcdbench.system.observer import Observer
from gcdbench.training import lane
from tests.support.runs import start

pytestmark = pytest.mark.usefixtures("few_digits")


def scalars(record, below=""):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(Path(record.dir) / "tensorboard" / below))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


class Stop(Observer):
    """Interrupts in the third epoch."""

    def step(self, t):
        if t.epoch == 2:
            raise KeyboardInterrupt


def test_tensorboard_shows_what_jsonl_holds(tmp_path):
    record = start(tmp_path, epochs=2, track=["tensorboard"], settings={"eval.every": 1})[0]
    found = scalars(record)
    lines = [json.loads(x) for x in (Path(record.dir) / "metrics.jsonl").read_text().splitlines()]
    assert [step for step, _ in found["loss/total"]] == [1, 2]
    for step, value in found["loss/main_ce"]:
        assert value == pytest.approx(lines[step - 1]["losses"]["main_ce"], rel=1e-5)
    assert found["metric/all"][1][1] == pytest.approx(record.metrics["all"], rel=1e-5)
    assert found["final/all"] == [(2, pytest.approx(record.metrics["all"], rel=1e-5))]
    assert found["lr/main"][0][1] > found["lr/main"][1][1]


def test_tracking_changes_no_result_and_is_no_other_run(tmp_path):
    plain = start(tmp_path, where="a", epochs=1)[0]
    tracked = start(tmp_path, where="b", epochs=1, track=["tensorboard", "jsonl"])[0]
    assert plain.run_id == tracked.run_id
    assert plain.metrics == tracked.metrics


def test_a_continued_run_logs_every_epoch_and_step_once(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "EVERY", 0.0)
    monkeypatch.setattr(lane, "LOOK", 0.0)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, epochs=3, track=["tensorboard"], observer=Stop())
    record = start(tmp_path, epochs=3, track=["tensorboard"])[0]
    assert [step for step, _ in scalars(record)["loss/total"]] == [1, 2, 3]
    assert [step for step, _ in scalars(record, "steps")["running/total"]] == list(range(3 * (400 // 64)))


def test_losses_within_an_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "EVERY", 0.0)
    monkeypatch.setattr(lane, "LOOK", 0.0)
    record = start(tmp_path, epochs=2, track=["tensorboard"])[0]
    steps = [step for step, _ in scalars(record, "steps")["running/total"]]
    assert steps == list(range(len(steps)))
    assert len(steps) == 2 * (400 // 64)


def test_an_unknown_tracker_is_told_before_training(cli, tmp_path):
    answer = cli("run", "--method", "rlcd", "--dataset", "digits", "--track", "tensorbord")
    assert answer.code == 2
    assert "Did you mean 'tensorboard'" in answer.stderr
    assert not (tmp_path / "runs").exists()


class Broken(Tracker):
    name = "broken"
    at = "epoch"

    def start(self, folder, config, epochs_done, steps_done):
        self.fail("start")

    def epoch(self, number, line):
        self.fail("epoch")

    def close(self):
        self.fail("close")

    def fail(self, hook):
        if hook == self.at:
            raise ZeroDivisionError("oops")


def test_a_tracker_that_fails_is_told_once_and_left_out(tmp_path):
    told = []
    made = trackers.Trackers((), told.append)
    made.others = [Broken()]
    made.start(tmp_path, {}, 0, 6)
    for _ in range(2):
        made.epoch({"losses": {}})
    made.close()
    (sentence,) = told
    assert sentence.startswith("The tracker 'broken' failed in epoch: ZeroDivisionError: oops (")
    assert sentence.endswith("in fail). The run continues without it.")
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_tracker_that_cannot_start_stops_the_run_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(Broken, "at", "start")
    made = trackers.Trackers((), print)
    made.others = [Broken()]
    with pytest.raises(PluginError, match="'broken' failed in start"):
        made.start(tmp_path, {}, 0, 6)
    made.close()


def test_tensorboard_that_is_not_installed(tmp_path, monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "torch.utils.tensorboard":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match="pip install 'gcdbench\\[tensorboard\\]'"):
        start(tmp_path, epochs=1, track=["tensorboard"])
    assert not (tmp_path / "runs").exists()
