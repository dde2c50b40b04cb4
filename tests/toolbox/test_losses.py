"""Shared losses against straightforward re-computation, and on empty sets."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from gcdbench.toolbox.heads import CosineClassifier, Projector
from gcdbench.toolbox.losses import (
    cross_entropy,
    info_nce,
    masked_mean,
    negative_mean_entropy,
    self_distillation,
    sinkhorn,
    supervised_contrastive,
    symmetric_kl,
)
from gcdbench.toolbox.schedules import warm_down

ROWS = 12


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def logits(random):
    return torch.rand(2 * ROWS, 5, generator=random) * 2 - 1


@pytest.fixture
def features(random):
    return torch.randn(2 * ROWS, 7, generator=random)


@pytest.fixture
def target(random):
    return torch.randint(0, 3, (ROWS,), generator=random)


@pytest.fixture
def mask(random):
    return torch.rand(ROWS, generator=random) < 0.6


def test_cross_entropy_ignores_hidden_rows(logits, target, mask):
    hidden = torch.where(mask, target, -1)
    two, keep = hidden.repeat(2), mask.repeat(2)
    expected = F.cross_entropy(logits[keep] / 0.1, two[keep])
    assert torch.allclose(cross_entropy(logits, two, keep, 0.1), expected)


def test_self_distillation(logits):
    one, two = logits.chunk(2)
    p, q = (F.log_softmax(v / 0.1, 1) for v in (one, two))
    expected = [-0.5 * ((two[i] / 0.04).softmax(0) @ p[i] + (one[i] / 0.04).softmax(0) @ q[i]) for i in range(ROWS)]
    assert torch.allclose(self_distillation(logits, 0.1, 0.04), torch.stack(expected), atol=1e-5)


def test_teacher_gets_no_gradient(logits):
    logits.requires_grad_()
    self_distillation(logits, 0.1, 0.04).sum().backward()
    ours = logits.grad.clone()
    logits.grad = None
    one, two = logits.chunk(2)
    teacher = (two.detach() / 0.04).softmax(1), (one.detach() / 0.04).softmax(1)
    loss = -0.5 * sum((t * F.log_softmax(s / 0.1, 1)).sum() for t, s in zip(teacher, (one, two), strict=True))
    loss.backward()
    assert torch.allclose(ours, logits.grad, atol=1e-5)


def test_symmetric_kl(logits):
    p, q = (logits / 0.1).softmax(1).chunk(2)
    expected = 0.5 * ((p * (p / q).log()).sum(1) + (q * (q / p).log()).sum(1))
    assert torch.allclose(symmetric_kl(logits, 0.1), expected, rtol=1e-3, atol=1e-5)


def test_negative_mean_entropy(logits):
    mean = (logits / 0.1).softmax(1).mean(0)
    assert torch.allclose(negative_mean_entropy(logits, 0.1), math.log(5) + (mean * mean.log()).sum(), atol=1e-6)
    assert negative_mean_entropy(torch.zeros(4, 5), 0.1).abs() < 1e-6


@pytest.mark.parametrize("anchors", ["all", "one"])
def test_supervised_contrastive_by_loops(features, target, mask, anchors):
    z = F.normalize(features, dim=1)
    rows = [v * ROWS + i for v in range(2) for i in range(ROWS) if mask[i]]
    terms = []
    for i in rows:
        if anchors == "one" and i >= ROWS:
            continue
        others = [j for j in rows if j != i]
        denominator = torch.logsumexp(torch.stack([z[i] @ z[j] / 0.1 for j in others]), 0)
        positives = [j for j in others if target[j % ROWS] == target[i % ROWS]]
        terms.append(torch.stack([denominator - z[i] @ z[j] / 0.1 for j in positives]).mean())
    expected = torch.stack(terms).mean()
    got = supervised_contrastive(features, target, mask, 0.1, anchors)
    assert torch.allclose(got, expected, atol=1e-5)


def test_info_nce_by_loops(features):
    z = F.normalize(features, dim=1)
    terms = []
    for i in range(2 * ROWS):
        others = [j for j in range(2 * ROWS) if j != i]
        partner = (i + ROWS) % (2 * ROWS)
        terms.append(torch.logsumexp(torch.stack([z[i] @ z[j] for j in others]), 0) - z[i] @ z[partner])
    assert torch.allclose(info_nce(features, 1.0), torch.stack(terms).mean(), atol=1e-5)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_empty_and_full_masks_are_finite(logits, features, target, share):
    mask = torch.full((ROWS,), bool(share))
    logits.requires_grad_()
    features.requires_grad_()
    total = cross_entropy(logits, target.repeat(2), mask.repeat(2), 0.1)
    total = total + supervised_contrastive(features, target, mask, 0.1)
    total = total + masked_mean(symmetric_kl(logits, 0.1), mask)
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(logits.grad).all()
    assert torch.isfinite(features.grad).all()
    if share == 0:
        assert total == 0
        assert (features.grad == 0).all()


def test_single_labelled_row_is_finite(features):
    mask = torch.zeros(ROWS, dtype=torch.bool)
    mask[0] = True
    assert torch.isfinite(supervised_contrastive(features, torch.zeros(ROWS, dtype=torch.long), mask, 0.1))


def test_losses_are_float32_under_autocast(logits, features, target, mask):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = features.bfloat16()
        value = supervised_contrastive(low, target, mask, 0.1)
    assert value.dtype == torch.float32
    assert torch.allclose(value, supervised_contrastive(low.float(), target, mask, 0.1))


def test_warm_down():
    values = [warm_down(0.07, 0.04, 4, e) for e in range(6)]
    assert values == pytest.approx([0.07, 0.06, 0.05, 0.04, 0.04, 0.04])
    assert warm_down(0.07, 0.04, 1, 0) == 0.04
    assert warm_down(0.07, 0.04, 0, 0) == 0.04


def test_cosine_classifier_ignores_lengths(random):
    head = CosineClassifier(7, 3, random)
    x = torch.randn(4, 7, generator=random)
    with torch.no_grad():
        before = head(x)
        head.weight.mul_(5)
        assert torch.allclose(head(3 * x), before, atol=1e-6)
    assert before.abs().max() <= 1


def test_heads_start_from_the_generator():
    heads = [CosineClassifier(7, 3, torch.Generator().manual_seed(4)) for _ in range(2)]
    assert torch.equal(heads[0].weight, heads[1].weight)
    mlps = [Projector(7, 8, 4, torch.Generator().manual_seed(4)) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(mlps[0].parameters(), mlps[1].parameters(), strict=True))


def test_sinkhorn_uses_all_classes_equally(logits):
    rows = torch.arange(2 * ROWS) % 4 > 0
    q = sinkhorn(logits, rows, 0.05, 200)
    assert (q[~rows] == 0).all()
    torch.testing.assert_close(q[rows].sum(1), torch.ones(int(rows.sum())), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(q.sum(0), torch.full((5,), rows.sum() / 5), rtol=1e-2, atol=1e-3)
    # Rows that do not count change nothing.
    other = torch.where(rows[:, None], logits, 100.0)
    torch.testing.assert_close(sinkhorn(other, rows, 0.05, 200), q)


def test_sinkhorn_gives_mass_to_a_class_that_no_row_likes():
    scores = torch.zeros(30, 3)
    scores[:, 2] = -1.9
    scores[:, 0] = torch.linspace(-0.1, 0.1, 30)
    q = sinkhorn(scores, torch.ones(30, dtype=torch.bool), 0.05, 50)
    torch.testing.assert_close(q.sum(0), torch.full((3,), 10.0), rtol=1e-3, atol=1e-3)


def test_sinkhorn_of_nothing_is_nothing(logits):
    assert (sinkhorn(logits, torch.zeros(2 * ROWS, dtype=torch.bool)) == 0).all()
    assert sinkhorn(logits * 1000, torch.ones(2 * ROWS, dtype=torch.bool)).isfinite().all()
