"""Heads that GCD methods share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gcdbench.losses import no_autocast, wide


class CosineClassifier(nn.Module):
    """Cosine similarity with one prototype per class; prototypes are normalised in the forward pass."""

    def __init__(self, dim: int, classes: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, dim))
        # Only the direction matters; a normal draw gives directions without preference.
        if self.weight.device.type != "meta":
            nn.init.normal_(self.weight, std=dim**-0.5, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, dim) features to (rows, classes) cosines, in float32 or wider."""
        with no_autocast(x):
            return F.linear(F.normalize(wide(x), dim=1), F.normalize(wide(self.weight), dim=1))


class ContrastiveHead(nn.Module):
    """DINO's head: an MLP to a narrow layer, then cosines with many directions; contrastive losses act on those."""

    def __init__(
        self,
        dim: int,
        hidden: int = 2048,
        narrow: int = 256,
        out: int = 65536,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.mlp = Projector(dim, hidden, narrow, generator)
        self.last = CosineClassifier(narrow, out, generator)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, dim) features to (rows, out), in float32 or wider."""
        return self.last(self.mlp(x))


class Projector(nn.Sequential):
    """The three-layer MLP in front of a contrastive loss."""

    def __init__(self, dim: int, hidden: int = 2048, out: int = 256, generator: torch.Generator | None = None) -> None:
        super().__init__(
            nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, out)
        )
        for layer in self:
            if isinstance(layer, nn.Linear) and layer.weight.device.type != "meta":
                nn.init.trunc_normal_(layer.weight, std=0.02, generator=generator)
                nn.init.zeros_(layer.bias)
