"""The two terms that LegoGCD adds to SimGCD: local entropy regularisation (LER) and a dual-view divergence (DKL)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.toolbox.losses import TINY, in_float32, wide


@in_float32
def confident_base(logits: Tensor, unlabelled: Tensor, num_base: int, temperature: float, threshold: float) -> Tensor:
    """(2 rows,) whether a view of an unlabelled row is put into a base class with at least this probability."""
    confidence, best = (logits.detach() / temperature).softmax(1).max(1)
    return unlabelled & (confidence >= threshold) & (best < num_base)


@in_float32
def local_entropy(logits: Tensor, chosen: Tensor, marginal: Tensor, temperature: float, margin: float) -> Tensor:
    """Cross entropy of the chosen views' distribution with itself after a margin of ``margin`` log q per class.

    The mean is over all views, chosen or not. Gradients flow through both sides, as in the authors' code.
    """
    scaled = logits / temperature
    log_p = F.log_softmax(scaled + margin * marginal.clamp(min=TINY).log(), dim=1)
    per_view = -(F.softmax(scaled, dim=1) * log_p).sum(1)
    return (per_view * chosen.to(per_view.dtype)).mean()


@in_float32
def dual_view_kl(logits: Tensor, temperature: float, double_softmax: bool) -> Tensor:
    """KL(view 1 | view 2), averaged over rows.

    ``double_softmax`` takes the logarithms of softmaxes *of the probabilities*, as the released code does; the weights
    are the probabilities themselves in either case.
    """
    z1, z2 = (logits / temperature).chunk(2)
    weight = z1.softmax(1)
    if double_softmax:
        z1, z2 = weight, z2.softmax(1)
    return (weight * (F.log_softmax(z1, dim=1) - F.log_softmax(z2, dim=1))).sum(1).mean()


@torch.no_grad()
def moved(marginal: Tensor, logits: Tensor, momentum: float) -> Tensor:
    """The running mean of class probabilities (at temperature one) after a batch."""
    return momentum * marginal + (1 - momentum) * wide(logits.detach()).softmax(1).mean(0)
