"""A training step in the shape of public GCD scripts: the whole network on every view, every token to the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gcdbench.backbone.block import pick
from gcdbench.backbone.split import SplitBackbone
from gcdbench.contracts import IntArray, Pool


class WholeNetwork(nn.Module):
    """Pixels in, CLS and extra tokens out: all blocks in full, the last one trained."""

    def __init__(self, split: SplitBackbone, norm: bool) -> None:
        super().__init__()
        self.frozen = split.trunk
        tail = split.tail()
        self.last = tail.blocks[-1]
        self.norm = tail.norm if norm else nn.Identity()

    def forward(self, images: Tensor, extra: Tensor | None = None, *, on_cls: bool = False) -> Tensor:
        """As `Tail`, but of pixels; gradients stay enabled, as frozen parameters alone keep the graph short."""
        x = self.frozen.raw(images)
        if extra is not None:
            own = extra.expand(len(x), -1, -1)
            x = torch.cat([x, x[:, :1] + own if on_cls else own], dim=1)
        found: Tensor = self.norm(pick(self.last(x), 0 if extra is None else len(extra)))
        return found


class ReferenceBackbone:
    """Gives methods the whole network where they expect a tail, so that their own code runs unchanged."""

    def __init__(self, split: SplitBackbone) -> None:
        self.split = split
        self.embed_dim = split.embed_dim

    def tail(self, *, norm: bool = True, extra_tokens: int = 0) -> WholeNetwork:
        """The network; `extra_tokens` come with the call."""
        return WholeNetwork(self.split, norm)


class PixelPool:
    """A pool whose tokens are pixels, already in memory: reading them costs the reference nothing."""

    def __init__(self, pixels: list[Tensor]) -> None:
        self.pixels = pixels
        self.index = np.arange(sum(map(len, pixels)))
        self.target = np.full(len(self.index), -1)
        self.labelled = np.zeros(len(self.index), dtype=bool)

    def once(self, action: Callable[[], Any]) -> Any:
        """There is one process."""
        return action()

    @property
    def queries(self) -> Pool:
        """All rows."""
        return self

    @property
    def query_places(self) -> IntArray:
        """All rows."""
        return self.index

    def generator(self) -> torch.Generator:
        """Random numbers."""
        return torch.Generator().manual_seed(0)

    def features(self, embed: Callable[[Tensor], Tensor], views: str = "test") -> Tensor:
        """Batch by batch."""
        with torch.no_grad():
            return torch.cat([embed(part) for part in self.pixels])

    def __len__(self) -> int:
        return len(self.index)


def public_kmeans(data: Tensor, targets: Tensor, centres: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """One restart in the public shape: differences of every row to every centre, 1,024 rows at a time."""
    labels = targets
    for _ in range(iterations):
        labels = _nearest(data, targets, centres)
        means = [data[labels == k].mean(0) if (labels == k).any() else centres[k] for k in range(len(centres))]
        centres = torch.stack(means)
    return _nearest(data, targets, centres), centres


def _nearest(data: Tensor, targets: Tensor, centres: Tensor) -> Tensor:
    found = [((rows[:, None] - centres[None]) ** 2).sum(-1).argmin(1) for rows in data.split(1024)]
    return torch.where(targets >= 0, targets, torch.cat(found))
