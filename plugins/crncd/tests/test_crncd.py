from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gcdbench_crncd import CRNCD, CRNCDConfig
from gcdbench_crncd.losses import class_relation
from gcdbench_simgcd import SimGCD

import gcdbench
from gcdbench.config.sections import TrainConfig
from gcdbench.contracts import Progress, Stage
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from tests.support.tiny import batch_of, tiny_task

PRETRAIN, DISCOVER = Progress("pretrain", 0, 5, 0, 3), Progress("discover", 0, 10, 0, 3)
SMALL = {"projector_hidden": 16, "projector_out": 8}


def method_of(**settings) -> CRNCD:
    return CRNCD(CRNCDConfig(**SMALL, **settings), tiny_task())


def test_the_distillation_is_the_published_formula():
    random = torch.Generator().manual_seed(0)
    new, old = torch.randn(2, 3, 8, 6, generator=random) / 3, torch.randn(2, 8, 4, generator=random) / 3
    rows, tau = torch.arange(8) > 2, 0.4
    z, o = new.double().numpy() / tau, old.double().numpy() / tau
    soft = lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)  # noqa: E731
    share = soft(z)[..., :4].sum(-1)
    eta = share / share[:, :, rows.numpy()].mean()
    ce = -(soft(o)[:, None] * np.log(soft(z[..., :4]))).sum(-1)
    expected = 16 * (eta * ce)[:, :, rows.numpy()].mean((0, 2))
    found = class_relation(new, old, rows, 0.1, 4.0, False)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    assert class_relation(new, old, torch.zeros(8, dtype=torch.bool), 0.1, 4.0, False).tolist() == [0, 0, 0]


def test_the_first_stage_trains_tail_and_base_prototypes_only():
    method = method_of()
    losses = method(batch_of(), PRETRAIN)
    assert list(losses) == ["ce"]
    optim = method.optimizers(Stage("pretrain", 5))["main"]
    trained = {id(p) for group in optim.optimizer.param_groups for p in group["params"]}
    tail = {id(p) for p in method.objective.tail.parameters() if p.requires_grad}
    assert trained == tail | {id(method.base.weight)}
    assert isinstance(optim.optimizer, torch.optim.AdamW)
    cls = method.objective.tail(batch_of().tokens)[:, 0]
    z = F.linear(F.normalize(cls, dim=1), method.base.weight) / 0.1
    batch = batch_of()
    known = batch.labelled.repeat(2)
    assert losses["ce"].value.item() == pytest.approx(
        F.cross_entropy(z[known], batch.target.repeat(2)[known]).item(), rel=1e-5
    )


@pytest.mark.parametrize("objective", ["simgcd", "uno"])
def test_discovery_starts_from_the_first_stage_and_keeps_a_frozen_copy(objective):
    method = method_of(objective=objective)
    with torch.no_grad():
        for p in (*method.objective.tail.parameters(), method.base.weight):
            p.add_(0.01)
    trained = {n: v.clone() for n, v in method.objective.tail.state_dict().items()}
    method.on_epoch_start(None, DISCOVER)
    for name, value in method.old_tail.state_dict().items():
        assert torch.equal(value, trained[name])
        assert torch.equal(method.objective.tail.state_dict()[name], trained[name])
    first = method.objective.simgcd.classifier.weight if objective == "simgcd" else method.objective.base.weight
    lengths = first.norm(dim=1, keepdim=True)
    torch.testing.assert_close(first[:3] / lengths[:3], method.old_base, atol=1e-6, rtol=0)
    # Those that are taken over are as long as the others, so that all turn equally fast.
    if objective == "simgcd":
        torch.testing.assert_close(lengths[:3].mean(), lengths[3:].mean())
    assert not any(p.requires_grad for p in method.old_tail.parameters())
    later = Progress("discover", 1, 10, 0, 3)
    before = method.old_base.clone()
    with torch.no_grad():
        method.base.weight.add_(1.0)
    method.on_epoch_start(None, later)
    assert torch.equal(method.old_base, before)  # once only


def test_discovery_can_start_from_the_backbone_again():
    method = method_of(start_from_stage1=False)
    fresh = {n: v.clone() for n, v in method.objective.tail.state_dict().items()}
    prototypes = method.objective.simgcd.classifier.weight.clone()
    with torch.no_grad():
        for p in method.objective.tail.parameters():
            p.add_(0.01)
    method.on_epoch_start(None, DISCOVER)
    for name, value in fresh.items():
        assert torch.equal(method.objective.tail.state_dict()[name], value)
    assert torch.equal(method.objective.simgcd.classifier.weight, prototypes)
    assert any(not torch.equal(v, fresh[n]) for n, v in method.old_tail.state_dict().items())


def test_discovery_is_simgcd_and_the_distillation():
    method, batch = method_of(), batch_of()
    method.on_epoch_start(None, DISCOVER)
    losses = method(batch, DISCOVER)
    own = method.objective.simgcd(batch, DISCOVER)
    assert set(losses) == {*own, "relation"}
    for name, term in own.items():
        assert losses[name].value.item() == term.value.item()
    assert losses["relation"].weight == 0.1
    cls = method.objective.tail(batch.tokens)[:, 0]
    new = torch.stack(method.objective.simgcd.classifier(cls).chunk(2))[:, None]
    old = torch.stack(F.linear(F.normalize(method.old_tail(batch.tokens)[:, 0], dim=1), method.old_base).chunk(2))
    expected = class_relation(new, old, ~batch.labelled, 0.1, 4.0, False).mean()
    assert losses["relation"].value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_optimisers_of_discovery():
    task = tiny_task(train=TrainConfig(lr=0.1))
    own = CRNCD(CRNCDConfig(**SMALL), task).optimizers(Stage("discover", 10))["main"]
    assert isinstance(own.optimizer, torch.optim.SGD)
    names = [len(g["params"]) for g in own.optimizer.param_groups]
    expected = SimGCD(CRNCDConfig(**SMALL), task).optimizers(Stage("main", 10))["main"]
    assert names == [len(g["params"]) for g in expected.optimizer.param_groups]
    uno = method_of(objective="uno").optimizers(Stage("discover", 10))["main"]
    assert isinstance(uno.optimizer, torch.optim.AdamW)


def test_settings_that_cannot_be_meant_are_refused():
    for wrong in ({"kd_temp": 0}, {"pretrain_epochs": 0}, {"heads": 0}, {"adam_floor": 2.0}, {"kd_weight": -1.0}):
        with pytest.raises(UsageError, match="method"):
            CRNCDConfig(**wrong)


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["adapted", "uno"])
def test_conformance(recipe):
    report = run_checks("crncd", recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["adapted", "uno"])
def test_a_run_on_digits_is_better_than_chance(recipe, tmp_path):
    settings = {"method.pretrain_epochs": 3}
    (record,) = gcdbench.run("crncd", "digits", recipe=recipe, runs=tmp_path / "runs", epochs=4, settings=settings)
    assert record.metrics["all"] > 50
    assert record.selected["stage"] == "discover"
