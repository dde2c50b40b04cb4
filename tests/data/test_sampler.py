from __future__ import annotations

import numpy as np
import torch

from gcdbench.data.sampler import BalancedSampler, PairedSampler
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


def test_pairs_hold_both_sets_in_proportion():
    sampler = PairedSampler(split(100, 300), 16)
    drawn = sampler.epoch(torch.Generator().manual_seed(0))
    assert drawn.shape == (25, 16)
    assert ((drawn < 100).sum(1) == 4).all()
    assert (drawn[:, :4] < 100).all()
    # Each set is gone through without a repetition.
    assert len(drawn[:, :4].unique()) == 100
    assert len(drawn[:, 4:].unique()) == 300


def test_pairs_of_one_sided_and_tiny_sets():
    for one, size in ((split(0, 10), 4), (split(1, 50), 8), (split(3, 4), 128), (split(3, 4), 1)):
        drawn = PairedSampler(one, size).epoch(torch.Generator().manual_seed(0))
        assert drawn.shape[1] == size
        assert drawn.max() < len(one.target)
        if len(one.labelled) and size > 1:
            assert (drawn[:, 0] < len(one.labelled)).all()


def test_same_generator_same_pairs():
    sampler = PairedSampler(split(50, 150), 16)
    one, two = (sampler.epoch(torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two)
