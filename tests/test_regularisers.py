from __future__ import annotations

import pytest
import torch

from gcdbench.regularisers import REGULARISERS, cdr, entropy, expected_distribution, lerm, mcc, pdr

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
