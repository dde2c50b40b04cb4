"""UNO's heads: several that cluster, several that over-cluster, and one for labelled classes that all of them share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gcdbench.heads import CosineClassifier


class ClusterHead(nn.Module):
    """A projector with batch norm, and prototypes."""

    def __init__(self, dim: int, hidden: int, out: int, prototypes: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, out))
        for layer in self.project:
            if isinstance(layer, nn.Linear) and layer.weight.device.type != "meta":
                nn.init.trunc_normal_(layer.weight, std=0.02, generator=generator)
                nn.init.zeros_(layer.bias)
        self.prototypes = CosineClassifier(out, prototypes, generator)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, dim) features to (rows, prototypes) cosines."""
        return self.prototypes(self.project(x))
