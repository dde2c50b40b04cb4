"""Prompts in pixels: a frame around the image, and a border around each of its patches."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def border_pixels(side: int, patch: int, width: int) -> list[int]:
    """Numbers of the pixels of a square image that are at most ``width`` from the edge of their patch."""
    near = [line % patch < width or line % patch >= patch - width for line in range(side)]
    return [y * side + x for y in range(side) for x in range(side) if near[y] or near[x]]


def _drawn(generator: torch.Generator | None, *shape: int) -> nn.Parameter:
    found = nn.Parameter(torch.empty(shape))
    if found.device.type != "meta":
        nn.init.normal_(found, generator=generator)
    return found


class Frame(nn.Module):
    """Four strips around the image."""

    def __init__(self, side: int, width: int, generator: torch.Generator | None) -> None:
        super().__init__()
        between = side - 2 * width
        self.up, self.down = (_drawn(generator, 3, width, side) for _ in range(2))
        self.left, self.right = (_drawn(generator, 3, between, width) for _ in range(2))
        self.between = between

    def forward(self) -> Tensor:
        """(3, side, side), zero inside."""
        hole = self.up.new_zeros(3, self.between, self.between)
        return torch.cat([self.up, torch.cat([self.left, hole, self.right], dim=2), self.down], dim=1)


class PatchBorders(nn.Module):
    """Numbers for the border pixels of every patch."""

    where: Tensor

    def __init__(self, side: int, patch: int, width: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.side = side
        self.register_buffer("where", torch.tensor(border_pixels(side, patch, width)), persistent=False)
        self.values = _drawn(generator, 3, len(self.where))

    def forward(self) -> Tensor:
        """(3, side, side), zero inside of patches."""
        whole = self.values.new_zeros(3, self.side**2)
        return whole.index_copy(1, self.where, self.values).view(3, self.side, self.side)


class Prompts(nn.Module):
    """Both kinds, added to normalised pixels; a width of zero leaves one out."""

    def __init__(
        self, side: int, patch: int, frame: int, border: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.frame = Frame(side, frame, generator) if frame else None
        self.patches = PatchBorders(side, patch, border, generator) if border else None

    def forward(self, images: Tensor) -> Tensor:
        """(rows, 3, side, side) with the prompts added."""
        for part in (self.frame, self.patches):
            images = images if part is None else images + part().to(images.dtype)
        return images
