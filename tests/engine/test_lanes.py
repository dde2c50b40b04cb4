"""Lanes: many runs on one trunk pass, each of them what it would have been alone."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import pytest
import torch

from gcdbench.backbone.vit import Trunk
from gcdbench.engine import checkpoint
from gcdbench.engine.batch import Job, run_jobs
from gcdbench.engine.reporter import Reporter
from gcdbench.engine.request import RunRequest
from gcdbench.engine.run import Place
from gcdbench.errors import GcdbenchError, PluginError, UsageError
from tests.engine.runs import SMALL, assert_same, start

SETTINGS = {"eval.every": 1}


def together(tmp_path, method="rlcd,simgcd", where="lanes", **more):
    return start(tmp_path, method, where, settings={**SETTINGS, **more.pop("settings", {})}, **more)


def alone(tmp_path, method, where="alone", **more):
    name, _, recipe = method.partition(":")
    settings = {**SETTINGS, **more.pop("settings", {})}
    return start(tmp_path, name, where, recipe=recipe or None, settings=settings, **more)[0]


@pytest.fixture
def passes(monkeypatch):
    """Sizes of all trunk passes."""
    sizes, original = [], Trunk.raw

    def raw(self, images):
        sizes.append(len(images))
        return original(self, images)

    monkeypatch.setattr(Trunk, "raw", raw)
    return sizes


@pytest.fixture(autouse=True)
def _small_projector(monkeypatch):
    """One set of settings must suit both methods."""
    from gcdbench_simgcd.method import SimGCD

    for key, value in SMALL.items():
        monkeypatch.setattr(SimGCD.Config, key.removeprefix("method."), value)
    monkeypatch.setattr("tests.engine.runs.SMALL", {})


def lines(record):
    found = [json.loads(x) for x in (Path(record.dir) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in x.items() if "seconds" not in k and k != "lanes"} for x in found]


def assert_equal_runs(one, two):
    assert one.run_id == two.run_id
    assert one.metrics == two.metrics
    assert lines(one) == lines(two)
    assert_same(one, two)
    left, right = (Path(r.dir) / checkpoint.FILE for r in (one, two))
    assert left.read_bytes() == right.read_bytes()


def test_lanes_equal_the_same_runs_alone_bit_for_bit(tmp_path):
    methods = ("rlcd", "rlcd:released", "simgcd")
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
    together(tmp_path, "rlcd,rlcd:released,simgcd", settings={"eval.every": 0})
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
    shared = together(tmp_path, "rlcd,rlcd:released", epochs=1)
    assert_equal_runs(shared[1], alone(tmp_path, "rlcd:released", epochs=1))


def test_hyper_parameters_are_lanes_and_equal_requests_are_one_run(tmp_path, passes):
    jobs = [
        Job(f"alpha {a}", RunRequest("rlcd", "digits", seeds=(0,), epochs=1, settings={"method.alpha": a}))
        for a in (0.1, 0.2, 0.3, 0.1)
    ]
    outcomes = run_jobs(jobs, Place(tmp_path / "runs", tmp_path, "cpu"), Reporter())
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


@pytest.mark.parametrize("hook", ["stages", "optimizers", "on_epoch_start", "forward", "on_step_end", "predict"])
def test_a_lane_that_fails_is_dropped_and_the_others_go_on(hook, tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    calls, original = [], getattr(RLCD, hook)

    def fail(self, *rest):
        if self.config.pseudo_base != "predicted":  # the released recipe
            calls.append(1)
            if len(calls) > 1 or hook in ("stages", "optimizers"):
                raise ZeroDivisionError("oops")
        return original(self, *rest)

    told = []

    class Listen(Reporter):
        def dropped(self, space, fault):
            told.append((space.config.recipe, str(fault)))

    with monkeypatch.context() as patch:
        patch.setattr(RLCD, hook, fail)
        with pytest.raises(PluginError, match="1 of 2 runs failed") as fault:
            together(tmp_path, "rlcd:released,rlcd", reporter=Listen())
    assert f"rlcd (released), seed 0: The method 'rlcd' failed in {hook}" in str(fault.value)
    assert told == [("released", f"The method 'rlcd' failed in {hook}: ZeroDivisionError: oops")]
    (survivor,) = (tmp_path / "lanes/rlcd/digits").glob("*/record.json")
    whole = alone(tmp_path, "rlcd")
    assert survivor.parent.name == whole.run_id
    assert_equal_runs(whole, start(tmp_path, "rlcd", "lanes", settings=SETTINGS)[0])
    # The lane that failed goes on where it stood.
    again = alone(tmp_path, "rlcd:released", "lanes")
    assert_equal_runs(again, alone(tmp_path, "rlcd:released"))


def test_a_lane_that_writes_into_the_batch_is_dropped_and_the_others_see_what_they_should(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    original = RLCD.forward

    def vandal(self, batch, t):
        losses = original(self, batch, t)
        if self.config.pseudo_base != "predicted" and t.step == 1:
            with torch.no_grad():
                batch.tokens.zero_()
                batch.index.zero_()
        return losses

    monkeypatch.setattr(RLCD, "forward", vandal)
    with pytest.raises(PluginError, match="changed the tensors of its batch in place"):
        together(tmp_path, "rlcd:released,rlcd", epochs=1)
    monkeypatch.setattr(RLCD, "forward", original)
    kept = start(tmp_path, "rlcd", "lanes", epochs=1, settings=SETTINGS)[0]
    assert_equal_runs(kept, alone(tmp_path, "rlcd", epochs=1))


class Stop(Reporter):
    """Interrupts in the second epoch."""

    def step(self, t, runners):
        if t.epoch == 1 and t.step == 2:
            raise KeyboardInterrupt


def test_interrupted_lanes_resume_together(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        together(tmp_path, epochs=3, reporter=Stop())
    for method in ("rlcd", "simgcd"):
        (folder,) = (tmp_path / "lanes" / method / "digits").iterdir()
        assert "stopped: KeyboardInterrupt" in (folder / "log.txt").read_text()
    for record in together(tmp_path, epochs=3):
        assert_equal_runs(record, alone(tmp_path, record.method, epochs=3))


def test_lanes_that_are_behind_catch_up_and_finished_ones_are_taken(tmp_path, passes):
    finished = alone(tmp_path, "rlcd", "lanes", epochs=3)
    with pytest.raises(KeyboardInterrupt):
        alone(tmp_path, "simgcd", "lanes", epochs=3, reporter=Stop())
    stamp = (Path(finished.dir) / "record.json").stat().st_mtime_ns
    records = together(tmp_path, "rlcd,simgcd,rlcd:released", epochs=3)
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

    class Count(Reporter):
        def step(self, t, runners):
            if t.step == 0:
                gc.collect()
                left.append(sum(ref() is not None for ref in alive))

    jobs = [Job(str(n), RunRequest("rlcd", "digits", seeds=(0,), settings={"train.epochs": n})) for n in (1, 2, 3)]
    with monkeypatch.context() as patch:
        patch.setattr(RLCD, "__init__", remember)
        outcomes = run_jobs(jobs, Place(tmp_path / "runs", tmp_path, "cpu"), Count())
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
        outcomes = run_jobs(jobs, Place(tmp_path / str(settings), tmp_path, "cpu"), Reporter())
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
    shared = together(tmp_path, "rlcd,rlcd:released,simgcd", epochs=1, lanes=2)
    assert [r.lanes for r in shared] == [2, 2, 1]
    assert_equal_runs(shared[1], alone(tmp_path, "rlcd:released", epochs=1))


def test_a_fault_of_what_all_share_is_told_of_each(tmp_path, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("pretend")

    monkeypatch.setattr(Trunk, "raw", fail)
    with pytest.raises(Exception, match="2 of 2 runs failed") as fault:
        together(tmp_path, epochs=1)
    assert str(fault.value).count("even for a single image") == 2
    assert not list((tmp_path / "lanes").glob("*/*/*/record.json"))


def test_an_empty_method_name_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="a method without a name"):
        together(tmp_path, "rlcd,,simgcd")


def released(self) -> bool:
    """Whether a method follows the released recipe: the lane that misbehaves."""
    return self.config.pseudo_base != "predicted"


def assert_the_other_is_whole(tmp_path, expected, settings=None):
    """The released recipe fails as expected; the paper's, in the same lanes, ends as it does alone."""
    with pytest.raises(expected[0], match="1 of 2 runs failed") as fault:
        together(tmp_path, "rlcd:released,rlcd", epochs=1, settings=settings or {})
    assert expected[1] in str(fault.value)
    assert "rlcd (released), seed 0" in str(fault.value)
    (survivor,) = (tmp_path / "lanes/rlcd/digits").glob("*/record.json")
    return survivor.parent


@pytest.mark.parametrize(
    ("hook", "answer", "words"),
    [
        ("active", ZeroDivisionError, "failed in active: ZeroDivisionError"),
        ("state_dict", ZeroDivisionError, "failed in state_dict: ZeroDivisionError"),
        ("stages", ["no stage"], "must return gcdbench.Stage objects"),
        ("predict", None, "must return a gcdbench.Prediction"),
    ],
)
def test_whatever_a_plugin_does_ends_its_own_lane_only(hook, answer, words, tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    original = getattr(RLCD, hook)

    def odd(self, *rest, **more):
        if not released(self):
            return original(self, *rest, **more)
        if answer is ZeroDivisionError:
            raise ZeroDivisionError("oops")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(RLCD, hook, odd)
        kept = assert_the_other_is_whole(tmp_path, (PluginError, words))
    assert kept.name == alone(tmp_path, "rlcd", epochs=1).run_id


@pytest.mark.parametrize("broken", ["schedule", "step"])
def test_an_optimiser_that_fails_ends_its_own_lane_only(broken, tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    from gcdbench.contracts import Optim

    original = RLCD.optimizers

    def fail(*_, **__):
        raise ZeroDivisionError("oops")

    def odd(self, stage):
        found = original(self, stage)
        if released(self):
            main = found["main"]
            if broken == "schedule":
                return {"main": Optim(main.optimizer, fail)}
            main.optimizer.step = fail
        return found

    with monkeypatch.context() as patch:
        patch.setattr(RLCD, "optimizers", odd)
        assert_the_other_is_whole(tmp_path, (PluginError, "ZeroDivisionError: oops"))


def test_a_directory_that_cannot_be_written_ends_its_own_lane_only(tmp_path):
    wrong = alone(tmp_path, "rlcd:released", "first", epochs=1).run_id
    (tmp_path / "lanes/rlcd/digits").mkdir(parents=True)
    (tmp_path / "lanes/rlcd/digits" / wrong).write_text("a file")
    kept = assert_the_other_is_whole(tmp_path, (GcdbenchError, "could not write or read a file"))
    assert kept.name == alone(tmp_path, "rlcd", epochs=1).run_id


def test_a_lane_that_failed_is_released(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    seen, original, build = [], RLCD.forward, RLCD.__init__

    def remember(self, config, task):
        build(self, config, task)
        seen.append((released(self), weakref.ref(self)))

    def forward(self, batch, t):
        losses = original(self, batch, t)
        if released(self) and t.step == 1:
            raise ZeroDivisionError("oops")
        return losses

    left = []

    class Look(Reporter):
        def step(self, t, runners):
            if t.step == 4:
                gc.collect()
                left.extend(bad for bad, ref in seen if ref() is not None)

    monkeypatch.setattr(RLCD, "__init__", remember)
    monkeypatch.setattr(RLCD, "forward", forward)
    with pytest.raises(PluginError):
        together(tmp_path, "rlcd:released,rlcd", epochs=1, reporter=Look())
    assert left == [False]


@pytest.mark.parametrize("what", ["random optimizers", "gradient of the batch", "switches of torch"])
def test_what_one_lane_does_to_the_world_is_not_seen_by_others(what, tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    optimizers, forward = RLCD.optimizers, RLCD.forward

    def random_optimizers(self, stage):
        with torch.no_grad():
            self.main_head.weight.add_(0.01 * torch.randn_like(self.main_head.weight))
        return optimizers(self, stage)

    def with_gradient(self, batch, t):
        batch.tokens.requires_grad_()
        return forward(self, batch, t)

    def use_gradient(self, batch, t):
        self.aux_token.add_(1e-3 * batch.tokens.grad.sum())

    def switch(self, batch, t):
        if released(self):
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)
        return forward(self, batch, t)

    with monkeypatch.context() as patch:
        if what == "random optimizers":
            patch.setattr(RLCD, "optimizers", random_optimizers)
        elif what == "gradient of the batch":
            patch.setattr(RLCD, "forward", with_gradient)
            patch.setattr(RLCD, "on_step_end", use_gradient)
        else:
            patch.setattr(RLCD, "forward", switch)
        if what == "switches of torch":  # the lane that turns them cannot train any more; the other must not notice
            assert_the_other_is_whole(tmp_path, (PluginError, "failed in backward"))
            shared = start(tmp_path, "rlcd", "lanes", epochs=1, settings=SETTINGS)[0]
        else:
            shared = together(tmp_path, "rlcd:released,rlcd", epochs=1)[1]
        assert_equal_runs(shared, alone(tmp_path, "rlcd", epochs=1))
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float32


def test_two_names_of_one_run_count_once(tmp_path):
    assert len(together(tmp_path, "rlcd,rlcd:paper", epochs=1)) == 1


def test_lanes_of_earlier_processes_are_remembered(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        together(tmp_path, "rlcd,simgcd", epochs=2, reporter=Stop())
    assert alone(tmp_path, "rlcd", "lanes", epochs=2).lanes == 2


def test_no_lane_at_all_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="lanes is 0"):
        together(tmp_path, lanes=0)
