from __future__ import annotations

import pytest
import torch
from gcdbench_mugcd import MuGCD, MuGCDConfig

import gcdbench
from gcdbench.contracts import Progress, Stage
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from tests.support.tiny import batch_of, tiny_task

SMALL = {"head_hidden": 16, "head_narrow": 8, "head_out": 24}
FIRST, SECOND = Progress("represent", 0, 5, 0, 3), Progress("discover", 0, 10, 0, 3)


def test_stages_train_their_own_parts():
    method = MuGCD(MuGCDConfig(**SMALL), tiny_task())
    assert [stage.name for stage in method.stages()] == ["represent", "discover"]
    assert set(method(batch_of(), FIRST)) == {"info_nce", "supcon"}
    assert set(method(batch_of(), SECOND)) == {"ce", "taught", "neg_entropy"}
    heads = {"represent": method.head, "discover": method.classifier}
    tail = {id(p) for p in method.tail.parameters() if p.requires_grad}
    for name, head in heads.items():
        optimizer = method.optimizers(Stage(name, 5))["main"].optimizer
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        assert trained == tail | {id(p) for p in head.parameters()}


def test_the_teacher_begins_as_the_student_and_gets_no_gradient():
    method = MuGCD(MuGCDConfig(**SMALL), tiny_task())
    with torch.no_grad():
        for p in method.tail.parameters():
            p.add_(0.01)
    assert any(not torch.equal(old, new) for old, new in method._followed())
    method.on_epoch_start(None, SECOND)
    assert all(torch.equal(old, new) for old, new in method._followed())
    method(batch_of(), SECOND).total().backward()
    assert all(old.grad is None for old, _ in method._followed())
    with torch.no_grad():
        method.classifier.weight.add_(1.0)
    before = method.teacher_classifier.weight.clone()
    method.on_step_end(batch_of(), SECOND)
    expected = 0.699 * before + 0.301 * method.classifier.weight
    torch.testing.assert_close(method.teacher_classifier.weight, expected)
    later = method.teacher_classifier.weight.clone()
    method.on_epoch_start(None, Progress("discover", 1, 10, 0, 3))
    assert torch.equal(method.teacher_classifier.weight, later)


def test_a_strong_view_is_for_the_student_only():
    method = MuGCD(MuGCDConfig(**SMALL, student_views="second"), tiny_task())
    batch = batch_of()
    one = {name: term.value.item() for name, term in method(batch, SECOND).items()}
    batch.tokens[:12] = batch.tokens[:12].flip(0)  # the weak view
    two = {name: term.value.item() for name, term in method(batch, SECOND).items()}
    assert one["ce"] == two["ce"]
    assert one["neg_entropy"] == two["neg_entropy"]
    assert one["taught"] != two["taught"]


def test_who_answers_is_a_setting():
    for answer, tail, head in (("teacher", "teacher_tail", "teacher_classifier"), ("student", "tail", "classifier")):
        method = MuGCD(MuGCDConfig(**SMALL, answer=answer), tiny_task())
        with torch.no_grad():
            method.classifier.weight.neg_()
        tokens = batch_of().tokens
        expected = getattr(method, head)(getattr(method, tail)(tokens)[:, 0])
        assert torch.equal(method.logits(tokens)["main"], expected)


def test_settings_that_cannot_be_meant_are_refused():
    for wrong in ({"student_temp": 0}, {"momentum_base": 2.0}, {"momentum_base": 0.0, "momentum_end": 0.9}):
        with pytest.raises(UsageError, match="method"):
            MuGCDConfig(**wrong)


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["adapted", "strong-views"])
def test_conformance(recipe):
    report = run_checks("mugcd", recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["adapted", "strong-views"])
def test_a_run_on_digits_is_better_than_chance(recipe, tmp_path):
    settings = {"method.represent_epochs": 1}
    (record,) = gcdbench.run("mugcd", "digits", recipe=recipe, runs=tmp_path / "runs", epochs=4, settings=settings)
    assert record.metrics["all"] > 40
    assert record.selected["stage"] == "discover"
