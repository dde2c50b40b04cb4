"""A lane that fails or misbehaves is stopped, and the others do not notice."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from gcdbench.backbone.vit import Trunk
from gcdbench.errors import GcdbenchError, PluginError
from gcdbench.system.observer import Observer
from tests.support.lanes import SETTINGS, alone, assert_equal_runs, together
from tests.support.runs import start

pytestmark = pytest.mark.usefixtures("few_digits", "small_projector")


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

    class Listen(Observer):
        def dropped(self, run, fault):
            told.append((run.recipe, str(fault)))

    with monkeypatch.context() as patch:
        patch.setattr(RLCD, hook, fail)
        with pytest.raises(PluginError, match="1 of 2 runs failed") as fault:
            together(tmp_path, "rlcd:released,rlcd:paper", observer=Listen())
    assert f"rlcd (released), seed 0: The method 'rlcd' failed in {hook}" in str(fault.value)
    (dropped,) = told
    assert dropped[0] == "released"
    assert dropped[1].startswith(f"The method 'rlcd' failed in {hook}: ZeroDivisionError: oops (")
    (survivor,) = (tmp_path / "lanes/rlcd/digits").glob("*/record.json")
    whole = alone(tmp_path, "rlcd:paper")
    assert survivor.parent.name == whole.run_id
    assert_equal_runs(whole, start(tmp_path, "rlcd", "lanes", recipe="paper", settings=SETTINGS)[0])
    # The lane that failed resumes where it stood.
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
        together(tmp_path, "rlcd:released,rlcd:paper", epochs=1)
    monkeypatch.setattr(RLCD, "forward", original)
    kept = start(tmp_path, "rlcd", "lanes", recipe="paper", epochs=1, settings=SETTINGS)[0]
    assert_equal_runs(kept, alone(tmp_path, "rlcd:paper", epochs=1))


def released(self) -> bool:
    """Whether a method follows the released recipe: the lane that misbehaves."""
    return self.config.pseudo_base != "predicted"


def assert_the_other_is_whole(tmp_path, expected, settings=None):
    """The released recipe fails as expected; the paper's, in the same lanes, ends as it does alone."""
    with pytest.raises(expected[0], match="1 of 2 runs failed") as fault:
        together(tmp_path, "rlcd:released,rlcd:paper", epochs=1, settings=settings or {})
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
    assert kept.name == alone(tmp_path, "rlcd:paper", epochs=1).run_id


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
    assert kept.name == alone(tmp_path, "rlcd:paper", epochs=1).run_id


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

    class Look(Observer):
        def step(self, t):
            if t.step == 4:
                gc.collect()
                left.extend(bad for bad, ref in seen if ref() is not None)

    monkeypatch.setattr(RLCD, "__init__", remember)
    monkeypatch.setattr(RLCD, "forward", forward)
    with pytest.raises(PluginError):
        together(tmp_path, "rlcd:released,rlcd:paper", epochs=1, observer=Look())
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
            shared = start(tmp_path, "rlcd", "lanes", recipe="paper", epochs=1, settings=SETTINGS)[0]
        else:
            shared = together(tmp_path, "rlcd:released,rlcd:paper", epochs=1)[1]
        assert_equal_runs(shared, alone(tmp_path, "rlcd:paper", epochs=1))
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float32


def test_a_fault_of_what_all_share_is_told_of_each(tmp_path, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("pretend")

    monkeypatch.setattr(Trunk, "raw", fail)
    with pytest.raises(Exception, match="2 of 2 runs failed") as fault:
        together(tmp_path, epochs=1)
    assert str(fault.value).count("even for a single image") == 2
    assert not list((tmp_path / "lanes").glob("*/*/*/record.json"))
