"""Gradients that know which part of the feature space belongs to known classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcdbench.toolbox.losses import in_float32, masked_mean


@torch.no_grad()
def known_subspace(features: Tensor, aperture: float) -> Tensor:
    """(dim, dim) soft projection onto where labelled features lie: R (R + a^-2 I)^-1 of their second moments R."""
    z = features if features.device.type == "mps" else features.double()
    moments = z.T @ z / max(1, len(z))
    eye = torch.eye(len(moments), dtype=moments.dtype, device=moments.device)
    found: Tensor = torch.linalg.solve(moments + eye / aperture**2, moments)
    return found.to(features.dtype)


@torch.no_grad()
def energy(features: Tensor, subspace: Tensor) -> Tensor:
    """(rows,) share of each row's squared length that lies in the subspace."""
    z = features.to(subspace.dtype)
    return ((z @ subspace) * z).sum(1) / (z * z).sum(1).clamp(min=1e-12)


@in_float32
def pull(features: Tensor, reference: Tensor, labelled: Tensor) -> Tensor:
    """Half the mean squared difference of labelled rows from what the reference model makes of them."""
    apart = (features - reference).square().mean(1)
    return 0.5 * masked_mean(apart, labelled)


@dataclass(frozen=True)
class Rules:
    """What is done to the gradients of a batch, given for both views."""

    subspace: Tensor
    usual: Tensor
    """Mean energy of labelled rows."""
    labelled: Tensor
    push: float
    """How much of an unlabelled row's gradient in the subspace is taken away, at the most."""

    def gradient(self, features: Tensor, gradient: Tensor) -> Tensor:
        """The changed gradient of every row."""
        novelty = (1 - energy(features, self.subspace) / self.usual.clamp(min=1e-12)).clamp(0, 1)[:, None]
        outside = gradient - self.push * novelty * (gradient @ self.subspace.to(gradient.dtype))
        return torch.where(self.labelled[:, None], gradient, outside).to(gradient.dtype)


class Coordinated(torch.autograd.Function):
    """Passes features on as they are and changes their gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, rules: Rules) -> Tensor:
        """The features."""
        ctx.rules = rules
        ctx.save_for_backward(features)
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The changed gradients."""
        (features,) = ctx.saved_tensors
        return ctx.rules.gradient(features, gradients[0]), None
