from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from gcdbench_protogcd import ProtoGCD, ProtoGCDConfig
from gcdbench_protogcd.method import adaptive_distillation, separation, targets
from gcdbench_simgcd import SimGCD

import gcdbench
from gcdbench.contracts import Progress
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from gcdbench.toolbox.losses import self_distillation
from tests.support.tiny import batch_of, tiny_task

SMALL = {"projector_hidden": 16, "projector_out": 8}


def test_the_most_decided_rows_get_hard_targets():
    logits = torch.tensor([[1.0, 0.9, 0], [1, 0, 0], [0, 0.5, 0.2], [0.3, 0.3, 0.3]])
    soft = F.softmax(logits / 0.05, dim=1)
    assert torch.equal(targets(logits, 0.05, 0.0), soft)
    assert torch.equal(targets(logits, 0.05, 0.2), soft)  # a fifth of four rows is none
    half = targets(logits, 0.05, 0.5)
    assert half[1].tolist() == [1, 0, 0]  # first over second: exp(20)
    assert half[2].tolist() == [0, 1, 0]  # exp(6)
    assert torch.equal(half[[0, 3]], soft[[0, 3]])
    assert ((targets(logits, 0.05, 1.0) == 0) | (targets(logits, 0.05, 1.0) == 1)).all()


def test_without_hard_targets_it_is_simgcds_distillation():
    logits = torch.randn(10, 6, generator=torch.Generator().manual_seed(0))
    plain = self_distillation(logits, 0.1, 0.05)
    torch.testing.assert_close(adaptive_distillation(logits, 0.1, 0.05, 0.0), plain)
    hard = adaptive_distillation(logits, 0.1, 0.05, 1.0)
    one, two = logits.chunk(2)
    log_one, log_two = (F.log_softmax(x / 0.1, dim=1) for x in (one, two))
    expected = [-0.5 * (log_two[i, one[i].argmax()] + log_one[i, two[i].argmax()]) for i in range(5)]
    torch.testing.assert_close(hard, torch.stack(expected))


def test_separation_by_loops():
    weight = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    unit = F.normalize(weight, dim=1)
    found = 0.0
    for k in range(5):
        found += math.log(sum(math.exp(unit[k] @ unit[j] / 0.1) for j in range(5) if j != k) / 4) / 5
    assert separation(weight, 0.1).item() == pytest.approx(found, rel=1e-5)
    assert separation(weight[:1], 0.1) == 0


def test_the_other_terms_are_simgcds():
    config = ProtoGCDConfig(**SMALL, hard_epochs=11)
    method, batch = ProtoGCD(config, tiny_task()), batch_of()
    t = Progress("main", 5, 20, 0, 3)
    losses, own = method(batch, t), SimGCD.terms(method, batch, t)[0]
    assert set(losses) == {*own, "separation"}
    for name in set(own) - {"self"}:
        assert losses[name].value.item() == own[name].value.item()
    logits = method.classifier(method.tail(batch.tokens)[:, 0])
    expected = adaptive_distillation(logits, 0.1, 0.05, 0.5).mean()
    assert losses["self"].value.item() == pytest.approx(expected.item())
    assert losses["self"].weight == own["self"].weight
    assert losses["separation"].weight == pytest.approx(0.65 * 0.1)


def test_settings_that_cannot_be_meant_are_refused():
    for wrong in ({"separation_temp": 0}, {"hard_epochs": 0}, {"separation_weight": -1.0}):
        with pytest.raises(UsageError, match="method"):
            ProtoGCDConfig(**wrong)


@pytest.mark.kit
def test_conformance():
    report = run_checks("protogcd")
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
def test_a_run_on_digits_is_better_than_chance(tmp_path):
    (record,) = gcdbench.run("protogcd", "digits", runs=tmp_path / "runs", epochs=4)
    assert record.metrics["all"] > 50
