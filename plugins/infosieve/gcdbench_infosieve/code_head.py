"""A code of tree-like place values for each projection, and a mask that says how much of it is used."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Age:
    """How far training is: values grow hard, and place values grow equal."""

    epoch: int
    epochs: int

    @property
    def age(self) -> float:
        """From a tenth, a tenth more in each epoch."""
        return (self.epoch + 1) / 10

    @property
    def base(self) -> float:
        """Of the place values: from two towards one."""
        return 2 - self.epoch / self.epochs


@dataclass(frozen=True)
class Codes:
    """What the head says of each row."""

    raw: Tensor
    """(rows, bits) values between minus and plus one."""
    mask: Tensor
    """(rows, bits) how much of each value is used, between zero and one."""
    code: Tensor
    """(rows, bits) values times their place values."""
    cut: Tensor
    """(rows, bits) code times mask."""
    category: Tensor
    """(rows, base classes) logits of the cut code."""


class CodeHead(nn.Module):
    """Three small MLPs on the projection: values, masks, and base classes from masked codes."""

    def __init__(
        self, width: int, bits: int, classes: int, hidden: int, layers: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.bits = bits
        self.coder, self.masker, self.categorizer = (
            _mlp(inputs, hidden, layers, outputs, generator)
            for inputs, outputs in ((width, bits), (width, bits), (bits, classes))
        )

    def forward(self, projection: Tensor, at: Age) -> Codes:
        """Codes of projections of length one."""
        raw = torch.tanh(at.age * self.coder(projection))
        mask = (torch.tanh(self.masker(projection) + 1 / (at.age + 1)) + 1) / 2
        places = at.base ** -torch.arange(self.bits, device=raw.device, dtype=raw.dtype)
        code = raw * places
        cut = mask * code
        return Codes(raw, mask, code, cut, self.categorizer(cut))


def _mlp(inputs: int, hidden: int, layers: int, outputs: int, generator: torch.Generator | None) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Linear(inputs, hidden), nn.GELU()]
    for _ in range(layers):
        parts += [nn.Linear(hidden, hidden), nn.GELU()]
    parts.append(nn.Linear(hidden, outputs))
    for part in parts:
        if isinstance(part, nn.Linear) and part.weight.device.type != "meta":
            nn.init.trunc_normal_(part.weight, std=0.02, generator=generator)
            nn.init.zeros_(part.bias)
    return nn.Sequential(*parts)
