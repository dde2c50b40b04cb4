"""UNO's heads: several that cluster, several that over-cluster, and one for labelled classes that all of them share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gcdbench.toolbox.heads import start_as_linear
from gcdbench.toolbox.losses import no_autocast, wide


class Prototypes(nn.Module):
    """Cosines with prototypes of length one.

    They are normalised in place between steps, not in the forward pass: gradients keep their part along a prototype,
    which then lives on in the optimiser's momentum.
    """

    def __init__(self, dim: int, count: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, dim))
        start_as_linear(self.weight, generator)
        if self.weight.device.type != "meta":
            self.normalise()

    @torch.no_grad()
    def normalise(self) -> None:
        """Back to length one."""
        self.weight.copy_(F.normalize(self.weight, dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, dim) features to (rows, prototypes) cosines, in float32 or wider."""
        with no_autocast(x):
            return F.linear(F.normalize(wide(x), dim=1), wide(self.weight))


class ClusterHead(nn.Module):
    """A projector with batch norm, and prototypes."""

    def __init__(self, dim: int, hidden: int, out: int, prototypes: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, out))
        for layer in self.project:
            if isinstance(layer, nn.Linear):
                start_as_linear(layer.weight, generator)
                start_as_linear(layer.bias, generator, width=layer.in_features)
        self.prototypes = Prototypes(out, prototypes, generator)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, dim) features to (rows, prototypes) cosines."""
        found: Tensor = self.prototypes(self.project(x))
        return found
