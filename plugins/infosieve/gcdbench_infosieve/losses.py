"""InfoSieve's terms. Similarity is the negative Euclidean distance; views are stacked view-major."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.toolbox.losses import in_float32, masked_mean

NEVER = -1e9


@in_float32
def distances(x: Tensor) -> Tensor:
    """(rows, rows) Euclidean distances. A distance of zero has a zero gradient.

    By a matrix product in float64 where the device has it: in float32 rows that nearly coincide lose all digits.
    """
    y = x if x.device.type == "mps" else x.double()
    squares = (y * y).sum(1)
    squared = (squares[:, None] + squares - 2 * y @ y.T).clamp(min=0)
    own = torch.eye(len(x), dtype=torch.bool, device=x.device)
    apart = (squared > 0) & ~own
    return torch.where(apart, squared.where(apart, 1.0).sqrt(), 0.0).to(x.dtype)


def normalised_distances(x: Tensor, rows: Tensor, along_rows: bool) -> Tensor:
    """Distances among the masked rows, each divided by the sum of its column (or of its own row)."""
    found = distances(x)
    use = rows.to(found.dtype)
    sums = found @ use
    return found / ((sums[:, None] if along_rows else sums[None, :]) + 1e-10)


@in_float32
def smoothed_info_nce(distance: Tensor, temperature: float, smoothing: float) -> Tensor:
    """Each view's other view is the one to be found among all others, with label smoothing over them."""
    views = len(distance)
    own = torch.eye(views, dtype=torch.bool, device=distance.device)
    logits = (-distance / temperature).masked_fill(own, NEVER)
    log_p = F.log_softmax(logits, dim=1)
    partner = torch.arange(views, device=distance.device).roll(views // 2)
    hit = log_p.gather(1, partner[:, None])[:, 0]
    mean = log_p.masked_fill(own, 0.0).sum(1) / (views - 1)
    return -((1 - smoothing) * hit + smoothing * mean).mean()


@in_float32
def distance_contrastive(distance: Tensor, target: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss over the masked rows, ``target`` and ``mask`` being those of all views."""
    own = torch.eye(len(distance), dtype=torch.bool, device=distance.device)
    pair = mask[:, None] & mask[None, :] & ~own
    positive = pair & (target[:, None] == target[None, :])
    logits = -distance / temperature
    log_sum = torch.logsumexp(logits.masked_fill(~pair, NEVER), dim=1, keepdim=True)
    log_p = torch.where(positive, logits - log_sum, 0.0).sum(1) / positive.sum(1).clamp(min=1)
    return -masked_mean(log_p, mask)


@in_float32
def code_condition(raw: Tensor) -> Tensor:
    """Zero when every value is plus or minus one, each as often."""
    return (1 - raw**2 + raw.mean(0) ** 2).mean()


@in_float32
def mask_condition(mask: Tensor) -> Tensor:
    """Zero when every value is zero or one."""
    return ((mask * (1 - mask)) ** 2).mean()


@in_float32
def code_length(mask: Tensor, mean: bool) -> Tensor:
    """Masks read as binary numbers, as shares of the largest: later bits count for more."""
    bits = mask.shape[1]
    # Relative to the largest: the powers of two themselves need not fit.
    places = torch.exp2(torch.arange(-bits, 0, device=mask.device, dtype=mask.dtype)) / (1 - 2.0**-bits)
    lengths = mask @ places
    return lengths.mean() if mean else lengths.sum()


@in_float32
def category_loss(logits: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Mean binary cross entropy of all base classes, over the masked rows."""
    known = F.one_hot(torch.where(mask, target, 0), logits.shape[1]).to(logits.dtype)
    return masked_mean(F.binary_cross_entropy_with_logits(logits, known, reduction="none").mean(1), mask)
