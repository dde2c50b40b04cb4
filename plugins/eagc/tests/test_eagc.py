from __future__ import annotations

import numpy as np
import pytest
import torch
from gcdbench_eagc import EAGC, EAGCConfig
from gcdbench_eagc.coordinate import Coordinated, Rules, energy, known_subspace, pull
from gcdbench_legogcd import LegoGCD
from gcdbench_simgcd import SimGCD

import gcdbench
from gcdbench.contracts import Progress, Stage
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from tests.support.tiny import batch_of, tiny_task

SMALL = {"projector_hidden": 16, "projector_out": 8}
FIRST, SECOND = Progress("reference", 0, 5, 0, 3), Progress("discover", 0, 10, 0, 3)


class Pool:
    """Labelled rows of a batch of tokens."""

    def __init__(self, tokens, labelled):
        self.tokens, self.labelled = tokens, labelled

    @torch.no_grad()
    def features(self, embed, views="test"):
        return embed(self.tokens)


def begun(**settings) -> EAGC:
    method, batch = EAGC(EAGCConfig(**SMALL, **settings), tiny_task()), batch_of()
    method.on_epoch_start(Pool(batch.tokens[:12], batch.labelled.numpy()), SECOND)
    return method


def test_subspace_and_energy_by_the_formulas():
    z = torch.randn(30, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[:, 4:] = 0
    r = (z.T @ z / 30).numpy()
    expected = r @ np.linalg.inv(r + np.eye(6) / 4)
    found = known_subspace(z, 2.0)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    rows = torch.eye(6, dtype=torch.float64) * 3
    assert energy(rows, found)[4:].tolist() == [0, 0]
    for row, value in zip(rows, energy(rows, found), strict=True):
        assert value.item() == pytest.approx((row @ found @ row / (row @ row)).item())


def test_gradients_are_changed_row_by_row():
    random = torch.Generator().manual_seed(1)
    x = torch.randn(6, 5, generator=random, requires_grad=True)
    subspace = known_subspace(torch.randn(20, 5, generator=random), 2.0)
    labelled = torch.tensor([True, False, False, True, False, False])
    reference, weight = torch.randn(6, 5, generator=random), torch.randn(6, 5, generator=random)
    usual = torch.tensor(0.8)
    out = Coordinated.apply(x, Rules(subspace, usual, labelled, push=3.0))
    assert torch.equal(out, x)
    ((out * weight).sum() + 0.7 * pull(x, reference, labelled)).backward()
    for row in range(6):
        g, z = weight[row], x[row].detach()
        if labelled[row]:
            expected = g + 0.7 * (z - reference[row]) / (2 * 5)
        else:
            share = 1 - (z @ subspace @ z / (z @ z)) / 0.8
            expected = g - 3.0 * share.clamp(0, 1) * (subspace @ g)
        torch.testing.assert_close(x.grad[row], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("base", "kind"), [("simgcd", SimGCD), ("legogcd", LegoGCD)])
def test_losses_are_those_of_the_method_it_is_put_on(base, kind):
    method, batch = begun(base=base), batch_of()
    assert type(method.base) is kind
    losses = method(batch, SECOND)
    assert set(method(batch, FIRST)) == {"ce"}
    method.eval()  # LegoGCD's running distribution stands still
    own = method.base(batch, SECOND)
    assert set(losses) == {*own, "pull"}
    assert losses["ce"].value.item() == pytest.approx(own["ce"].value.item())


def test_the_tail_gets_other_gradients_and_the_heads_the_same():
    plain, changed = begun(push=0.0, pull=0.0), begun(push=3.0, pull=0.7)
    batch = batch_of()
    for method in (plain, changed):
        with torch.no_grad():
            for p in method.reference_tail.parameters():
                p.add_(0.01)
        method(batch, SECOND).total().backward()
    pairs = list(zip(plain.named_parameters(), changed.named_parameters(), strict=True))
    for (name, one), (_, two) in pairs:
        if one.grad is not None:
            same = torch.equal(one.grad, two.grad)
            assert same != name.startswith(("adapted.tail", "base.tail.tail")), name


def test_discovery_begins_with_a_frozen_copy_and_the_labelled_rows():
    method, batch = EAGC(EAGCConfig(**SMALL), tiny_task()), batch_of()
    with torch.no_grad():
        for p in method.adapted.tail.parameters():
            p.add_(0.01)
    method.on_epoch_start(Pool(batch.tokens[:12], batch.labelled.numpy()), SECOND)
    for name, value in method.adapted.tail.state_dict().items():
        assert torch.equal(method.reference_tail.state_dict()[name], value)
    known = method.reference_tail(batch.tokens[:12])[:, 0][batch.labelled]
    torch.testing.assert_close(method.subspace, known_subspace(known, 2.0))
    assert method.usual.item() == pytest.approx(energy(known, method.subspace).mean().item(), rel=1e-5)
    before = method.usual.item()
    method(batch, SECOND)
    own = method.adapted.tail(batch.tokens)[:, 0][batch.labelled.repeat(2)]
    mean = energy(own, method.subspace).mean().item()
    assert method.usual.item() == pytest.approx(0.95 * before + 0.05 * mean, rel=1e-5)


def test_rates():
    method = EAGC(EAGCConfig(**SMALL), tiny_task())
    discover = method.optimizers(Stage("discover", 10))["main"]
    rates = {g["lr"] for g in discover.optimizer.param_groups}
    assert rates == {method.task.train.lr, 1.0}
    last = Progress("discover", 10, 10, 0, 3)
    assert len({discover.schedule(rate, last) for rate in rates}) == 1
    reference = method.optimizers(Stage("reference", 10))["main"]
    assert {g["lr"] for g in reference.optimizer.param_groups} == {0.02}
    assert {g["weight_decay"] for g in reference.optimizer.param_groups} == {0.0, 1e-4}
    trained = sum(len(g["params"]) for g in discover.optimizer.param_groups)
    assert trained == len([p for n, p in method.named_parameters() if p.requires_grad and not n.startswith("known")])


def test_settings_that_cannot_be_meant_are_refused():
    for wrong in ({"aperture": 0}, {"push": -1.0}, {"energy_momentum": 2.0}, {"reference_epochs": 0}):
        with pytest.raises(UsageError, match="method"):
            EAGCConfig(**wrong)


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["simgcd", "legogcd"])
def test_conformance(recipe):
    report = run_checks("eagc", recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["simgcd", "legogcd"])
def test_a_run_on_digits_is_better_than_chance(recipe, tmp_path):
    settings = {"method.reference_epochs": 2}
    (record,) = gcdbench.run("eagc", "digits", recipe=recipe, runs=tmp_path / "runs", epochs=4, settings=settings)
    assert record.metrics["all"] > 50
