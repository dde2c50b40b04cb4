from __future__ import annotations

import numpy as np
import torch

from gcdbench.data.sampler import BalancedSampler
from gcdbench.data.splits import Split


def split(labelled: int, unlabelled: int) -> Split:
    rows = np.arange(labelled + unlabelled)
    return Split((0,), (1,), rows[:labelled], rows[labelled:], np.zeros(len(rows), dtype=np.int64))


def test_half_of_a_batch_is_labelled():
    sampler = BalancedSampler(split(500, 3500), 128)
    drawn = sampler.epoch(torch.Generator().manual_seed(0))
    assert drawn.shape == (31, 128)
    assert abs((drawn < 500).float().mean() - 0.5) < 0.02


def test_steps_per_epoch_are_the_published_ones():
    for rows, steps in ((50_000, 390), (5_994, 46), (8_144, 63), (6_667, 52), (34_225, 267)):
        assert BalancedSampler(split(rows // 4, rows - rows // 4), 128).steps == steps


def test_one_sided_and_tiny_sets():
    for one in (split(0, 10), split(3, 4)):
        drawn = BalancedSampler(one, 128).epoch(torch.Generator().manual_seed(0))
        assert drawn.shape == (1, 128)
        assert drawn.max() < 10


def test_same_generator_same_rows():
    sampler = BalancedSampler(split(50, 150), 16)
    one, two = (sampler.epoch(torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two)
