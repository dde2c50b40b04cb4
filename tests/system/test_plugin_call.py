"""What goes wrong in a run ends in a sentence, and the last good state stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gcdbench.contracts import Losses, Prediction
from gcdbench.errors import PluginError, TrainingError, UsageError
from gcdbench.training import checkpoint
from tests.support.runs import start

pytestmark = pytest.mark.usefixtures("few_digits")


def test_not_finite_loss_stops_with_its_name(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    original = RLCD.forward

    def forward(self, batch, t):
        losses = original(self, batch, t)
        if t.epoch == 1 and t.step >= 2:
            losses.add("explosive", losses["main_ce"].value * float("inf"))
        return losses

    monkeypatch.setattr(RLCD, "forward", forward)
    with pytest.raises(TrainingError, match="'explosive' of 'rlcd' is not finite at step 3"):
        start(tmp_path)
    folder = next((tmp_path / "runs/rlcd/digits").iterdir())
    assert not (folder / "record.json").exists()
    saved = checkpoint.load(folder)
    assert saved["epoch"] == 1
    assert all(torch.isfinite(w).all() for w in saved["lane"]["method"].values())


@pytest.mark.parametrize("hook", ["forward", "predict", "on_epoch_start", "on_step_end", "optimizers", "stages"])
def test_faults_of_a_plugin_are_told_as_such(hook, tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    def fail(*_, **__):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(RLCD, hook, fail)
    with pytest.raises(PluginError, match=f"The method 'rlcd' failed in {hook}: ZeroDivisionError: oops"):
        start(tmp_path)


def test_bad_answers_of_a_plugin_are_told(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    with monkeypatch.context() as patch:
        patch.setattr(RLCD, "predict", lambda self, pool: Prediction(np.zeros(3, dtype=np.int64)))
        with pytest.raises(PluginError, match=r"shape \(3,\)"):
            start(tmp_path, epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(RLCD, "forward", lambda self, batch, t: Losses())
        with pytest.raises(PluginError, match="at least one named loss"):
            start(tmp_path, epochs=1, where="other")


def test_out_of_memory_in_the_trunk_halves_the_pass(tmp_path, monkeypatch):
    from gcdbench.backbone.vit import Trunk

    original, sizes = Trunk.raw, []

    def raw(self, images):
        if len(images) > 32:
            raise torch.OutOfMemoryError("pretend")
        sizes.append(len(images))
        return original(self, images)

    plain = start(tmp_path, epochs=1)[0]
    monkeypatch.setattr(Trunk, "raw", raw)
    record = start(tmp_path, epochs=1, force=True)[0]
    assert max(sizes) == 32
    assert record.metrics["all"] == pytest.approx(plain.metrics["all"], abs=1.0)
    monkeypatch.setattr(Trunk, "raw", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("always")))
    with pytest.raises(TrainingError, match="even for a single image"):
        start(tmp_path, epochs=1, where="other")


def test_a_failing_evaluator_is_a_note_and_a_failing_headline_is_a_fault(tmp_path, monkeypatch):
    from gcdbench.evaluation.evaluators import ClusterAccuracy, Information

    def fail(*_):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Information, "__call__", fail)
    record = start(tmp_path, epochs=1)[0]
    assert "nmi" not in record.metrics
    assert any("evaluator 'information' failed" in w for w in record.warnings)
    monkeypatch.setattr(ClusterAccuracy, "__call__", fail)
    with pytest.raises(PluginError, match="evaluator 'cluster_accuracy' failed"):
        start(tmp_path, epochs=1, where="other")


def test_seeds_are_checked(tmp_path):
    assert [r.seed for r in start(tmp_path, epochs=1, seeds=[0, 0])] == [0]
    for wrong in ([], "01", [-1], [0.5]):
        with pytest.raises(UsageError, match="Seeds must be whole numbers"):
            start(tmp_path, epochs=1, seeds=wrong)
