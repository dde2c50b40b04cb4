"""ORCA's losses: cross entropy with an uncertainty-adaptive margin, and agreement of paired rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.toolbox.losses import TINY, in_float32, masked_mean


@in_float32
def margin_cross_entropy(cosines: Tensor, target: Tensor, labelled: Tensor, margin: Tensor, scale: float) -> Tensor:
    """Cross entropy of labelled rows at this scale, the cosine of the true class raised by the margin.

    Raising it makes the true class easier: while unlabelled rows are uncertain, known classes are learnt more slowly.
    """
    safe = torch.where(labelled, target, 0)
    raised = cosines + margin * F.one_hot(safe, cosines.shape[1])
    return masked_mean(F.cross_entropy(raised * scale, safe, reduction="none"), labelled)


@in_float32
@torch.no_grad()
def partners(features: Tensor, target: Tensor, labelled: Tensor, generator: torch.Generator | None) -> Tensor:
    """(rows,) a positive for each row: a random other labelled row of its class, or itself if there is none; for an
    unlabelled row its nearest neighbour in the batch."""
    rows = len(features)
    own = torch.eye(rows, dtype=torch.bool, device=features.device)
    z = F.normalize(features, dim=1)
    near = (z @ z.T).masked_fill(own, -torch.inf).argmax(1)
    same = labelled[:, None] & labelled[None, :] & (target[:, None] == target[None, :]) & ~own
    draw = torch.rand((rows, rows), generator=generator, device=features.device)
    mate = torch.where(same, draw, -1.0).argmax(1)
    itself = torch.arange(rows, device=features.device)
    mate = torch.where(same.any(1), mate, itself)
    return torch.where(labelled, mate, near if rows > 1 else itself)


@in_float32
def pair_agreement(p1: Tensor, p2: Tensor, pairs: Tensor) -> Tensor:
    """Mean of -log <p_i, p'_j> over rows i of the first view and their partners j in the second."""
    return -(p1 * p2[pairs]).sum(1).clamp(min=TINY).log().mean()


@in_float32
def negative_entropy(p: Tensor) -> Tensor:
    """Minus the entropy of the mean distribution: smallest when all classes are used equally."""
    mean = p.mean(0)
    return (mean * mean.clamp(min=TINY).log()).sum()
