"""Lanes: many runs on one trunk pass, each of them what it would have been alone."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import pytest
import torch

from gcdbench.backbone.vit import Trunk
from gcdbench.errors import UsageError
from gcdbench.experiments.jobs import Job, run_jobs
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.request import RunRequest
from gcdbench.system.observer import Observer
from tests.support.lanes import alone, assert_equal_runs, together
from tests.support.runs import assert_same, start

pytestmark = pytest.mark.usefixtures("few_digits", "small_projector")


@pytest.fixture
def passes(monkeypatch):
    """Sizes of all trunk passes."""
    sizes, original = [], Trunk.raw

    def raw(self, images):
        sizes.append(len(images))
        return original(self, images)

    monkeypatch.setattr(Trunk, "raw", raw)
    return sizes


def test_lanes_equal_the_same_runs_alone_bit_for_bit(tmp_path):
    methods = ("rlcd:paper", "rlcd:released", "simgcd")
    shared = together(tmp_path, ",".join(methods))
    assert [(r.method, r.recipe) for r in shared] == [("rlcd", "paper"), ("rlcd", "released"), ("simgcd", "paper")]
    for method, record in zip(methods, shared, strict=True):
        assert_equal_runs(record, alone(tmp_path, method))
    assert [r.lanes for r in shared] == [3, 3, 3]
    assert json.loads((Path(shared[0].dir) / "metrics.jsonl").read_text().splitlines()[0])["lanes"] == 3


def test_lanes_share_the_trunk_passes(tmp_path, passes):
    alone(tmp_path, "rlcd", settings={"eval.every": 0})
    one = len(passes)
    passes.clear()
    together(tmp_path, "rlcd:paper,rlcd:released,simgcd", settings={"eval.every": 0})
    # Steps, evaluation tokens and the token's shape once for all; counting a step's operations once per run.
    assert len(passes) == one + 2


def test_a_method_that_draws_random_numbers_is_not_disturbed_by_others(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    original = RLCD.forward

    def noisy(self, batch, t):
        losses = original(self, batch, t)
        losses.add("noise", self.aux_token.sum() * torch.rand(()) * torch.rand((), generator=t.generator))
        return losses

    monkeypatch.setattr(RLCD, "forward", noisy)
    shared = together(tmp_path, "rlcd:paper,rlcd:released", epochs=1)
    assert_equal_runs(shared[1], alone(tmp_path, "rlcd:released", epochs=1))


def test_hyper_parameters_are_lanes_and_equal_requests_are_one_run(tmp_path, passes):
    jobs = [
        Job(f"alpha {a}", RunRequest("rlcd", "digits", seeds=(0,), epochs=1, settings={"method.alpha": a}))
        for a in (0.1, 0.2, 0.3, 0.1)
    ]
    outcomes = run_jobs(jobs, RunEnvironment(tmp_path / "runs", tmp_path, "cpu"), Observer())
    ids = [o.records[0].run_id for o in outcomes]
    assert len(set(ids)) == 3
    assert ids[0] == ids[3]
    assert outcomes[0].records[0].lanes == 3


def test_seeds_have_streams_of_their_own_unless_they_share_one(tmp_path):
    own = together(tmp_path, "rlcd", "own", seeds=(0, 1), epochs=1)
    assert [r.lanes for r in own] == [1, 1]
    shared = together(tmp_path, "rlcd", seeds=(0, 1), epochs=1, settings={"train.stream": 0})
    assert [r.lanes for r in shared] == [2, 2]
    assert_equal_runs(shared[1], alone(tmp_path, "rlcd", seeds=1, epochs=1, settings={"train.stream": 0}))
    assert "train.stream" in shared[0].chosen
    # The stream of seed 0 is its own in any case: only the identity differs.
    assert shared[0].metrics == own[0].metrics
    assert shared[0].run_id != own[0].run_id


class Stop(Observer):
    """Interrupts in the second epoch."""

    def step(self, t):
        if t.epoch == 1 and t.step == 2:
            raise KeyboardInterrupt


def test_interrupted_lanes_resume_together(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        together(tmp_path, epochs=3, observer=Stop())
    for method in ("rlcd", "simgcd"):
        (folder,) = (tmp_path / "lanes" / method / "digits").iterdir()
        assert "stopped: KeyboardInterrupt" in (folder / "log.txt").read_text()
    for record in together(tmp_path, epochs=3):
        assert_equal_runs(record, alone(tmp_path, record.method, epochs=3))


def test_lanes_that_are_behind_catch_up_and_finished_ones_are_taken(tmp_path, passes):
    finished = alone(tmp_path, "rlcd:paper", "lanes", epochs=3)
    with pytest.raises(KeyboardInterrupt):
        alone(tmp_path, "simgcd", "lanes", epochs=3, observer=Stop())
    stamp = (Path(finished.dir) / "record.json").stat().st_mtime_ns
    records = together(tmp_path, "rlcd:paper,simgcd,rlcd:released", epochs=3)
    assert (Path(finished.dir) / "record.json").stat().st_mtime_ns == stamp
    # SimGCD had one epoch: the released recipe trains that one alone, the others with it.
    shared = [json.loads(x).get("lanes", 1) for x in (Path(records[2].dir) / "metrics.jsonl").read_text().splitlines()]
    assert shared == [1, 2, 2]
    for record in records:
        method = f"{record.method}:{record.recipe}"
        assert_equal_runs(record, alone(tmp_path, method, epochs=3))


def test_lanes_of_different_length_and_the_release_of_finished_ones(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    alive = []
    original = RLCD.__init__

    def remember(self, config, task):
        original(self, config, task)
        alive.append(weakref.ref(self))

    left = []

    class Count(Observer):
        def step(self, t):
            if t.step == 0:
                gc.collect()
                left.append(sum(ref() is not None for ref in alive))

    jobs = [Job(str(n), RunRequest("rlcd", "digits", seeds=(0,), settings={"train.epochs": n})) for n in (1, 2, 3)]
    with monkeypatch.context() as patch:
        patch.setattr(RLCD, "__init__", remember)
        outcomes = run_jobs(jobs, RunEnvironment(tmp_path / "runs", tmp_path, "cpu"), Count())
    assert left == [3, 2, 1]
    assert [o.records[0].lanes for o in outcomes] == [3, 3, 3]
    third = start(tmp_path, "rlcd", "alone", epochs=3)[0]
    assert_same(outcomes[2].records[0], third)


def test_another_trunk_or_batch_is_another_group(tmp_path):
    def lanes(**settings):
        jobs = [
            Job("one", RunRequest("rlcd", "digits", seeds=(0,), epochs=1)),
            Job("two", RunRequest("simgcd", "digits", seeds=(0,), epochs=1, settings=settings)),
        ]
        outcomes = run_jobs(jobs, RunEnvironment(tmp_path / str(settings), tmp_path, "cpu"), Observer())
        return [o.records[0].lanes for o in outcomes]

    assert lanes() == [2, 2]
    for changed in (
        {"backbone.train_from": -2},
        {"train.batch_size": 32},
        {"views.crop": 12},
        {"data.label_ratio": 0.3},
        {"train.precision": "bf16"},
    ):
        assert lanes(**changed) == [1, 1], changed


def test_the_number_of_lanes_can_be_limited(tmp_path):
    shared = together(tmp_path, "rlcd:paper,rlcd:released,simgcd", epochs=1, lanes=2)
    assert [r.lanes for r in shared] == [2, 2, 1]
    assert_equal_runs(shared[1], alone(tmp_path, "rlcd:released", epochs=1))


def test_an_empty_method_name_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="a method without a name"):
        together(tmp_path, "rlcd,,simgcd")


def test_two_names_of_one_run_count_once(tmp_path):
    assert len(together(tmp_path, "rlcd,rlcd:released", epochs=1)) == 1


def test_lanes_of_earlier_processes_are_remembered(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        together(tmp_path, "rlcd,simgcd", epochs=2, observer=Stop())
    assert alone(tmp_path, "rlcd", "lanes", epochs=2).lanes == 2


def test_no_lane_at_all_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="lanes is 0"):
        together(tmp_path, lanes=0)
