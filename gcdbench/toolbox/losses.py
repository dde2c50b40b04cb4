"""Losses that GCD methods share.

All of them are computed outside autocast in float32 (in float64 where that is given), take masks instead of picking
rows (picking rows would make the host wait for a GPU), and are finite, with zero gradient, when the mask is empty.
Two-view tensors are view-major: all first views, then all second ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

_Loss = TypeVar("_Loss", bound=Callable[..., Any])

TINY = 1e-12
"""Keeps logarithms and divisions finite without moving any float32 result."""


def in_float32(loss: _Loss) -> _Loss:
    """Run a loss outside autocast on float32 copies of its floating-point tensors; float64 stays what it is."""

    @functools.wraps(loss)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with no_autocast(next(a for a in args if isinstance(a, Tensor))):
            return loss(*map(_float, args), **{k: _float(v) for k, v in kwargs.items()})

    return cast(_Loss, wrapper)


def no_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Outside autocast on the tensor's device; shapes without numbers (the meta device) know no autocast."""
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)


def wide(x: Tensor) -> Tensor:
    """In float32, or in float64 if that is what it is (`--precision fp64`)."""
    return x if x.dtype == torch.float64 else x.float()


def _float(value: Any) -> Any:
    return wide(value) if isinstance(value, Tensor) and value.is_floating_point() else value


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``values`` where ``mask`` holds; zero where it holds nowhere."""
    weight = mask.to(values.dtype)
    return (values * weight).sum() / weight.sum().clamp(min=1.0)


@in_float32
def cross_entropy(logits: Tensor, target: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """Mean cross entropy of the masked rows; ``target`` may hold anything elsewhere."""
    safe = torch.where(mask, target, 0)
    return masked_mean(F.cross_entropy(logits / temperature, safe, reduction="none"), mask)


@in_float32
def self_distillation(logits: Tensor, student_temp: float, teacher_temp: float) -> Tensor:
    """Each view's sharpened, detached distribution teaches the other view. Returns one value per row."""
    log_p1, log_p2 = F.log_softmax(logits / student_temp, dim=1).chunk(2)
    q1, q2 = F.softmax(logits.detach() / teacher_temp, dim=1).chunk(2)
    return -0.5 * ((q1 * log_p2).sum(1) + (q2 * log_p1).sum(1))


@in_float32
def symmetric_kl(logits: Tensor, temperature: float) -> Tensor:
    """Half of KL(p1|p2) + KL(p2|p1) between the two views, gradients through both sides; one value per row."""
    log_p1, log_p2 = F.log_softmax(logits / temperature, dim=1).chunk(2)
    return 0.5 * ((log_p1.exp() - log_p2.exp()) * (log_p1 - log_p2)).sum(1)


@in_float32
def negative_mean_entropy(logits: Tensor, temperature: float) -> Tensor:
    """log K - H(mean p): zero when the batch uses all classes equally."""
    mean = F.softmax(logits / temperature, dim=1).mean(0)
    return math.log(len(mean)) + (mean * mean.clamp(min=TINY).log()).sum()


@in_float32
def supervised_contrastive(
    features: Tensor,
    target: Tensor,
    mask: Tensor,
    temperature: float,
    anchors: Literal["all", "one"] = "all",
) -> Tensor:
    """Supervised contrastive loss over the masked rows of two views.

    ``features`` is (2 rows, dim) and normalised here; ``target`` and ``mask`` are (rows,). With ``anchors``
    "one" only first views are anchors. Rows outside the mask are neither anchors nor contrasts.
    """
    z = F.normalize(features, dim=1)
    label, use = target.repeat(2), mask.repeat(2)
    n = len(z) if anchors == "all" else len(z) // 2
    logits = z[:n] @ z.T / temperature
    other = ~torch.eye(len(z), dtype=torch.bool, device=z.device)[:n]
    pair = use[:n, None] & use[None, :] & other
    positive = pair & (label[:n, None] == label[None, :])
    log_sum = torch.logsumexp(logits.masked_fill(~pair, -1e9), dim=1, keepdim=True)
    log_prob = torch.where(positive, logits - log_sum, 0.0).sum(1) / positive.sum(1).clamp(min=1)
    return -masked_mean(log_prob, use[:n])


@in_float32
def info_nce(features: Tensor, temperature: float) -> Tensor:
    """InfoNCE over all rows of two views; the other view of the same image is the only positive."""
    z = F.normalize(features, dim=1)
    rows = len(z) // 2
    own = torch.eye(len(z), dtype=torch.bool, device=z.device)
    logits = (z @ z.T / temperature).masked_fill(own, -1e9)
    partner = torch.arange(len(z), device=z.device).roll(rows)
    return F.cross_entropy(logits, partner)


@in_float32
@torch.no_grad()
def sinkhorn(logits: Tensor, rows: Tensor, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    """Soft assignments of the masked rows that use all classes equally (Sinkhorn-Knopp); zero for other rows.

    Each iteration scales classes to the same mass, then rows to the same mass; the rows returned sum to one.
    """
    mask = rows.to(logits.dtype)[:, None]
    largest = logits.masked_fill(~rows.bool()[:, None], -torch.inf).max().clamp(min=-1e9)
    q = torch.exp((logits - largest).clamp(max=0) / epsilon) * mask
    smallest = torch.finfo(q.dtype).tiny  # a class that hardly any row likes has very little mass, and needs it most
    for _ in range(iterations):
        q = q / q.sum(0, keepdim=True).clamp(min=smallest)
        q = q / q.sum(1, keepdim=True).clamp(min=smallest)
    return q
