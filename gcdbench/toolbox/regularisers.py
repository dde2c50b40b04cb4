"""Regularisers of a batch's class distributions: ENT, MCC, LERM, PDR and CDR behind one interface.

Each takes the class probabilities of the two views, a weight (0 or 1) per row and, optionally, which classes
count, and returns a scalar that is finite for empty sets and absent classes.

Any method with a classifier can offer them: its Config inherits from `RegulariserSlot`, its `forward` calls
`regularise` with the logits of both views.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from gcdbench.contracts import Losses
from gcdbench.errors import UsageError
from gcdbench.toolbox.losses import TINY, in_float32, wide


class Regulariser(Protocol):
    """``(p_view1, p_view2, rows, classes) -> scalar``; p is (rows, K), rows (rows,), classes (K,) or None."""

    def __call__(self, p1: Tensor, p2: Tensor, rows: Tensor, classes: Tensor | None = None) -> Tensor: ...


def expected_distribution(p: Tensor, rows: Tensor) -> Tensor:
    """m_k, the mean distribution of the rows weighted by their probability of class k; (K, K), rows sum to one."""
    weighted = p * rows[:, None]
    return (weighted.T @ p) / weighted.sum(0).clamp(min=TINY)[:, None]


@in_float32
def cdr(p1: Tensor, p2: Tensor, rows: Tensor, classes: Tensor | None = None) -> Tensor:
    """Class-wise distribution regularisation: 1 - mean over classes of <m_k, m'_k>."""
    agreement = (expected_distribution(p1, rows) * expected_distribution(p2, rows)).sum(1)
    if classes is None:
        classes = torch.ones_like(agreement)
    # An empty set of rows or classes costs nothing instead of the constant 1.
    count = classes.sum() * (rows.sum() > 0)
    return ((1 - agreement) * classes).sum() * (count > 0) / count.clamp(min=1)


@in_float32
def pdr(p1: Tensor, p2: Tensor, rows: Tensor, classes: Tensor | None = None) -> Tensor:
    """Pair-wise distribution regularisation: 1 - mean over rows of <p_i, p'_i>."""
    return ((1 - (p1 * p2).sum(1)) * rows).sum() / rows.sum().clamp(min=1)


@in_float32
def entropy(p1: Tensor, p2: Tensor, rows: Tensor, classes: Tensor | None = None) -> Tensor:
    """Entropy minimisation (ENT): mean entropy of the rows of both views."""
    h = -(p1 * p1.clamp(min=TINY).log() + p2 * p2.clamp(min=TINY).log()).sum(1) / 2
    return (h * rows).sum() / rows.sum().clamp(min=1)


@in_float32
def mcc(p1: Tensor, p2: Tensor, rows: Tensor, classes: Tensor | None = None) -> Tensor:
    """Minimum class confusion (MCC): off-diagonal mass of the certainty-weighted class confusion, per class."""
    return (_confusion(p1, rows) + _confusion(p2, rows)) / 2


def _confusion(p: Tensor, rows: Tensor) -> Tensor:
    h = -(p * p.clamp(min=TINY).log()).sum(1)
    certainty = (1 + torch.exp(-h)) * rows
    weight = (certainty * rows.sum() / certainty.sum().clamp(min=TINY)).detach()
    matrix = (p * weight[:, None]).T @ p
    matrix = matrix / matrix.sum(1, keepdim=True).clamp(min=TINY)
    return (matrix.sum() - matrix.trace()) / len(matrix)


@in_float32
def lerm(p1: Tensor, p2: Tensor, rows: Tensor, classes: Tensor | None = None) -> Tensor:
    """Label-encoding risk minimisation (LERM): L1 distance of m from the identity, averaged over its entries."""
    eye = torch.eye(p1.shape[1], device=p1.device)
    some = (rows.sum() > 0).to(p1.dtype)
    distance = sum((expected_distribution(p, rows) - eye).abs().mean() for p in (p1, p2))
    return distance * some / 2


REGULARISERS: dict[str, Regulariser] = {"cdr": cdr, "pdr": pdr, "ent": entropy, "mcc": mcc, "lerm": lerm}
"""By the name used in configs."""


@dataclass(frozen=True)
class RegulariserSlot:
    """Settings of the regulariser of a method's class distributions; off unless the user chooses one."""

    regularizer: Literal["none", "cdr", "pdr", "ent", "mcc", "lerm"] = "none"
    """Which regulariser acts on the class distributions."""
    regularizer_weight: float = 0.5
    """Its weight."""
    regularizer_temp: float = 0.1
    """Temperature of the distributions that are regularised."""

    def __post_init__(self) -> None:
        if self.regularizer_temp <= 0:
            raise UsageError(f"method.regularizer_temp is {self.regularizer_temp}; a temperature must be positive.")


def regularise(losses: Losses, config: RegulariserSlot, *heads: Tensor, rows: Tensor | None = None) -> None:
    """Add the term that the settings ask for, if any: its mean over the method's heads.

    A head's logits are (2 rows, K), view-major; ``rows`` (rows,) masks the rows that count, all of them by default.
    """
    if config.regularizer == "none":
        return
    found = []
    for logits in heads:
        p1, p2 = (wide(logits) / config.regularizer_temp).softmax(1).chunk(2)
        weight = torch.ones_like(p1[:, 0]) if rows is None else rows.to(p1.dtype)
        found.append(REGULARISERS[config.regularizer](p1, p2, weight))
    losses.add(config.regularizer, torch.stack(found).mean(), config.regularizer_weight)
