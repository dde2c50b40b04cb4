from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from gcdbench.config.sections import TrainConfig
from gcdbench.contracts import Progress
from gcdbench.system.seeding import derive, fenced_rng, generator
from gcdbench.toolbox.optim import CosinePerEpoch, decay_groups, sgd

pytestmark = pytest.mark.usefixtures("few_digits")


def test_cosine_is_the_published_schedule():
    schedule = CosinePerEpoch(1e-4)
    for epoch in (0, 1, 100, 199):
        expected = 1e-4 + (0.1 - 1e-4) * (1 + math.cos(math.pi * epoch / 200)) / 2
        assert schedule(0.1, Progress("main", epoch, 200, 0, 1)) == pytest.approx(expected)


def test_cosine_equals_torch():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9, eta_min=1e-4)
    for epoch in range(9):
        ours = CosinePerEpoch(1e-4)(0.01, Progress("main", epoch, 9, 0, 1))
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        reference.step()


def test_no_decay_on_one_dimensional_parameters():
    layer = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))
    decayed, plain = decay_groups(layer.named_parameters(), TrainConfig())
    assert [p.ndim for p in decayed["params"]] == [2]
    assert len(plain["params"]) == 3
    assert plain["weight_decay"] == 0.0


def test_generators_are_named():
    assert derive(0, "a") != derive(0, "b") != derive(1, "b")
    assert torch.equal(torch.rand(3, generator=generator(0, "x", 1)), torch.rand(3, generator=generator(0, "x", 1)))


def test_fenced_rng_restores():
    def draw():
        return float(torch.rand(1)), float(np.random.rand()), random.random()

    def seed():
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)

    seed()
    expected = draw()
    seed()
    with fenced_rng(5, "inside"):
        first = draw()
    assert draw() == expected
    with fenced_rng(5, "inside"):
        assert draw() == first


def test_a_parameter_that_begins_to_learn_later_than_others():
    """Its first step is the same with the fused and with the plain form."""
    finals = []
    for fused in (True, False):
        one, late = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
        optim = sgd([{"params": [one, late], "weight_decay": 0.0}], TrainConfig(lr=0.1)).optimizer
        if not fused:
            optim = torch.optim.SGD([one, late], lr=0.1, momentum=0.9)
        for step in range(4):
            optim.zero_grad(set_to_none=True)
            loss = (one**2).sum() + ((late**2).sum() if step > 1 else 0.0)
            loss.backward()
            optim.step()
        finals.append((one.detach().clone(), late.detach().clone()))
    for a, b in zip(*finals, strict=True):
        torch.testing.assert_close(a, b)
