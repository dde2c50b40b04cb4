from __future__ import annotations

import pytest
import torch

from gcdbench import registry
from gcdbench.config.resolve import resolve
from gcdbench.contracts import Losses, Progress
from gcdbench.errors import UsageError
from gcdbench.toolbox.regularisers import (
    REGULARISERS,
    RegulariserSlot,
    cdr,
    entropy,
    expected_distribution,
    lerm,
    mcc,
    pdr,
    regularise,
)
from tests.support.tiny import batch_of, tiny_task

N, K = 10, 4


@pytest.fixture
def views():
    random = torch.Generator().manual_seed(0)
    return tuple((torch.randn(N, K, generator=random) * 2).softmax(1) for _ in range(2))


@pytest.fixture
def rows():
    return torch.tensor([1, 0, 1, 1, 1, 0, 1, 1, 1, 1], dtype=torch.float)


def m_by_loops(p, rows):
    kept = [p[i] for i in range(N) if rows[i]]
    return torch.stack([sum(q[k] * q for q in kept) / sum(q[k] for q in kept) for k in range(K)])


def test_expected_distributions_sum_to_one(views, rows):
    m = expected_distribution(views[0], rows)
    assert torch.allclose(m, m_by_loops(views[0], rows), atol=1e-6)
    assert torch.allclose(m.sum(1), torch.ones(K))


def test_cdr_equation(views, rows):
    one, two = (m_by_loops(p, rows) for p in views)
    expected = torch.stack([1 - one[k] @ two[k] for k in range(K)])
    assert torch.allclose(cdr(*views, rows), expected.mean(), atol=1e-6)
    present = torch.tensor([1.0, 0, 1, 0])
    assert torch.allclose(cdr(*views, rows, present), expected[[0, 2]].mean(), atol=1e-6)


def test_cdr_is_zero_only_for_equal_one_hot_distributions():
    hard = torch.eye(K).repeat(3, 1)[:N]
    everybody = torch.ones(N)
    assert cdr(hard, hard, everybody).abs() < 1e-6
    mixed = (hard + hard.roll(1, 1)) / 2
    assert cdr(hard, mixed, everybody) > 0.4
    soft = torch.full((N, K), 1 / K)
    assert torch.allclose(cdr(soft, soft, everybody), torch.tensor(1 - 1 / K))


def test_pdr_and_entropy(views, rows):
    keep = rows.bool()
    p, q = (v[keep] for v in views)
    assert torch.allclose(pdr(*views, rows), 1 - (p * q).sum(1).mean())
    expected = -((p * p.log()).sum(1) + (q * q.log()).sum(1)).mean() / 2
    assert torch.allclose(entropy(*views, rows), expected, atol=1e-6)


def test_mcc_by_loops(views, rows):
    total = 0.0
    for p in views:
        p = p[rows.bool()]
        h = -(p * p.log()).sum(1)
        w = (1 + torch.exp(-h)) / (1 + torch.exp(-h)).sum() * len(p)
        c = p.T @ torch.diag(w) @ p
        c = c / c.sum(1, keepdim=True)
        total = total + (c.sum() - c.trace()) / K / 2
    assert torch.allclose(mcc(*views, rows), total, atol=1e-6)


def test_lerm(views, rows):
    expected = sum((m_by_loops(p, rows) - torch.eye(K)).abs().mean() for p in views) / 2
    assert torch.allclose(lerm(*views, rows), expected, atol=1e-6)


@pytest.mark.parametrize("name", REGULARISERS)
def test_finite_with_no_row_and_with_absent_classes(name):
    logits = torch.full((N, K), -1e4)
    logits[:, 0] = 1e4
    logits.requires_grad_()
    p = logits.softmax(1)
    for rows in (torch.zeros(N), torch.ones(N)):
        value = REGULARISERS[name](p, p, rows, torch.zeros(K))
        value.backward(retain_graph=True)
        assert torch.isfinite(value)
        assert torch.isfinite(logits.grad).all()


PARAMETRIC = (
    *("simgcd", "legogcd", "uno", "orca", "rlcd", "rsplus", "crncd"),
    *("sptnet", "mugcd", "protogcd", "eagc"),
)
SMALL = {
    "projector_hidden": 16,
    "projector_out": 8,
    "heads": 2,
    "frame": 1,
    "alternate_every": 1,
    "head_hidden": 16,
    "head_narrow": 8,
    "head_out": 16,
}


def test_the_slot_adds_the_term_that_is_asked_for():
    logits = torch.rand(2 * N, K, generator=torch.Generator().manual_seed(0))
    losses = Losses()
    regularise(losses, RegulariserSlot(), logits)
    assert not losses
    regularise(losses, RegulariserSlot(regularizer="mcc", regularizer_weight=0.3, regularizer_temp=0.2), logits)
    p1, p2 = (logits / 0.2).softmax(1).chunk(2)
    assert losses["mcc"].weight == 0.3
    assert torch.equal(losses["mcc"].value, mcc(p1, p2, torch.ones(N)))
    some = torch.arange(N) < 4
    regularise(losses, RegulariserSlot(regularizer="pdr"), logits, rows=some)
    p1, p2 = (logits / 0.1).softmax(1).chunk(2)
    assert torch.equal(losses["pdr"].value, pdr(p1, p2, some.float()))


@pytest.mark.parametrize("name", ["mcc", "cdr", "lerm", "ent", "pdr"])
@pytest.mark.parametrize("method", PARAMETRIC)
def test_every_parametric_method_has_the_slot(method, name):
    """`--set method.regularizer=mcc` is the same key for all of them."""
    from gcdbench.config.resolve import Layer

    cls = registry.load("method", method)
    known = set(cls.Config.__dataclass_fields__)
    values = {f"method.{k}": v for k, v in {**SMALL, "regularizer": name}.items() if k in known}
    resolved = resolve(
        method=method, dataset="", recipe="", seed=0, method_config=cls.Config, layers=[Layer("--set", values)]
    )
    sees_pixels = cls.traits.train_from == 0
    made = cls(resolved.config.method_config, tiny_task(train_from=cls.traits.train_from))
    batch = batch_of(shape=(3, 8, 8)) if sees_pixels else batch_of()
    losses = made(batch, Progress(made.stages()[-1].name, 0, 10, 0, 3))
    terms = [term for term in losses if term.endswith(name)]
    assert terms, list(losses)
    assert all(losses[term].value.requires_grad for term in terms)


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(UsageError, match="regularizer_temp"):
        RegulariserSlot(regularizer_temp=0)
