"""Heads that GCD methods share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gcdbench.toolbox.losses import no_autocast, wide


def start_as_linear(weight: Tensor, generator: torch.Generator | None, width: int | None = None) -> None:
    """Initial values as torch gives a Linear layer of ``width`` inputs: uniform within ±1/√width."""
    if weight.device.type != "meta":
        bound = (weight.shape[-1] if width is None else width) ** -0.5
        nn.init.uniform_(weight, -bound, bound, generator=generator)


class CosineClassifier(nn.Module):
    """Cosine similarity with one prototype per class; prototypes are normalised in the forward pass.

    Only directions matter, but the shorter a prototype is, the faster a step turns it (by 1/length²): ``start`` is part
    of a method. `linear` is torch's own start of a Linear layer, as published heads have it (rows 0.58 long);
    `unit` draws rows of about length one.
    """

    def __init__(
        self,
        dim: int,
        classes: int,
        generator: torch.Generator | None = None,
        start: Literal["linear", "unit"] = "linear",
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, dim))
        if start == "linear":
            start_as_linear(self.weight, generator)
        elif self.weight.device.type != "meta":
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
        found: Tensor = self.last(self.mlp(x))
        return found

    @staticmethod
    def reference_widths(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Widths of such a head in a recorded trajectory, for `Method.reference_config`."""
        hidden, narrow = shapes["head.mlp.0.weight"][0], shapes["head.mlp.4.weight"][0]
        return {"head_hidden": hidden, "head_narrow": narrow, "head_out": shapes["head.last_layer.weight_v"][0]}

    @staticmethod
    def reference_names(own: str) -> dict[str, str]:
        """Recorded names of such a head's parameters, for `Method.reference_names`."""
        layers = {f"head.mlp.{i}.{kind}": f"{own}.mlp.{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias")}
        return {**layers, "head.last_layer.weight_v": f"{own}.last.weight"}


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
