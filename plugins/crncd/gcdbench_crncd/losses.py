"""Class-relation distillation: how a model of the base classes alone spreads a novel image over them is kept."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from gcdbench.toolbox.losses import TINY, in_float32


@in_float32
def relation_weight(cosines: Tensor, base: int, rows: Tensor, temperature: float) -> Tensor:
    """(views, heads, rows) share of each row's probability that lies on base classes, divided by its mean over the
    masked rows of all views and heads."""
    mask = rows.to(cosines.dtype)
    share = F.softmax(cosines / temperature, dim=-1)[..., :base].sum(-1)
    views, heads = cosines.shape[:2]
    mean = (share * mask).sum() / (mask.sum() * views * heads).clamp(min=1)
    return share / mean.clamp(min=TINY)


@in_float32
def class_relation(
    cosines: Tensor, old: Tensor, rows: Tensor, temperature: float, sharpness: float, detach_weight: bool
) -> Tensor:
    """(heads,) distillation from the old model on the masked rows, mean over views and rows.

    ``cosines`` are (views, heads, rows, classes) of the new model, base classes first; ``old`` are (views, rows, base)
    of the frozen one. Both are softened by ``temperature`` x ``sharpness``, and the square of the latter keeps the
    gradient's size. The gradient runs through the weight as well, as in the authors' code, unless it is detached.
    """
    soft, base = temperature * sharpness, old.shape[-1]
    weight = relation_weight(cosines, base, rows, soft)
    weight = weight.detach() if detach_weight else weight
    said = F.softmax(old.detach() / soft, dim=-1)[:, None]
    log_p = F.log_softmax(cosines[..., :base] / soft, dim=-1)
    value = sharpness**2 * weight * -(said * log_p).sum(-1)
    mask = rows.to(cosines.dtype)
    return (value * mask).sum((0, 2)) / (mask.sum() * len(cosines)).clamp(min=1)
