"""Ranking statistics: two rows are alike if their largest features are the same ones."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.toolbox.losses import in_float32, masked_mean

TINY = 1e-7
"""As in AutoNovel's code, so that logarithms stay finite."""


@torch.no_grad()
def alike(features: Tensor, top: int) -> Tensor:
    """(rows, rows) whether two rows have the same set of positions of their ``top`` largest features."""
    best = features.topk(min(top, features.shape[1]), dim=1).indices
    member = torch.zeros_like(features, dtype=torch.float32).scatter_(1, best, 1.0)
    found: Tensor = member @ member.T > best.shape[1] - 0.5
    return found


@torch.no_grad()
def known_pairs(pairs: Tensor, target: Tensor, labelled: Tensor) -> Tensor:
    """The same with pairs of labelled rows decided by their labels."""
    both = labelled[:, None] & labelled[None, :]
    return torch.where(both, target[:, None] == target[None, :], pairs)


@in_float32
def pair_loss(first: Tensor, second: Tensor, pairs: Tensor, rows: Tensor) -> Tensor:
    """Mean over all ordered pairs of the masked rows, each row with itself included.

    A pair's probability of being one class is the product of one row's distribution in the first view with the other's
    in the second; it is pushed up for pairs that are alike and down for all others. Arguments are logits.
    """
    same = first.softmax(1) @ second.softmax(1).T
    value = -torch.where(pairs, same, 1 - same).add(TINY).log()
    return masked_mean(value, rows[:, None] & rows[None, :])


@in_float32
def consistency(first: Tensor, second: Tensor) -> Tensor:
    """Mean squared difference of the two views' probabilities, over rows and classes."""
    return F.mse_loss(first.softmax(1), second.softmax(1))


def ramp_up(largest: float, length: float, epoch: int) -> float:
    """The weight of the consistency term: exp(-5 (1 - e/T)^2) of the largest one."""
    done = min(epoch / length, 1.0) if length > 0 else 1.0
    return largest * math.exp(-5 * (1 - done) ** 2)
