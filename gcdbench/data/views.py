"""Views: crops and flips of resized images, decided by numbers drawn beforehand, so that readers draw nothing.

Training view: random crop, mirrored half of the time. Evaluation view: centre crop. The colour jitter that papers
list is a no-op in the published code (it is called without arguments) and therefore absent here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from gcdbench.config.sections import ViewConfig
from gcdbench.data.images import Pixels

NUMBERS = 14
"""Uniform random numbers that a view of another kind than weak may use."""
GATHERED = 64
"""Crops that one indexing operation takes on an accelerator; bounds the memory of its indices."""


@dataclass(frozen=True)
class ViewPlan:
    """What to cut from which rows. Positions are shares (0..1) of the free play, because sizes differ by image."""

    rows: Tensor
    """(rows,) row numbers."""
    top: Tensor | None = None
    """(views, rows) shares; None for the centre."""
    left: Tensor | None = None
    mirror: Tensor | None = None
    """(views, rows) bool."""
    stored: Tensor | None = None
    """(views, rows) numbers of stored views, where training reads those instead of images."""
    drawn: Tensor | None = None
    """(views, rows, numbers) shares for what `views.kinds` asks beyond crop and mirror; None where all are weak."""

    @property
    def views(self) -> int:
        """Views of each row."""
        given = self.top if self.stored is None else self.stored
        return 1 if given is None else len(given)

    def share(self, rank: int, size: int) -> ViewPlan:
        """The rows rank, rank + size, rank + 2 size, ... with their views."""
        if size == 1:
            return self

        def some(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[:, rank::size].contiguous()

        rows = self.rows[rank::size].contiguous()
        parts = (self.top, self.left, self.mirror, self.stored, self.drawn)
        return ViewPlan(rows, *map(some, parts))


def random_plan(rows: Tensor, config: ViewConfig, random: torch.Generator, views: int | None = None) -> ViewPlan:
    """Independent random views of each row."""
    shape = (config.count if views is None else views, len(rows))
    top = torch.rand(shape, generator=random)
    left = torch.rand(shape, generator=random)
    mirror = torch.rand(shape, generator=random) < 0.5
    drawn = torch.rand((*shape, NUMBERS), generator=random) if config.kinds else None
    return ViewPlan(rows, top, left, mirror if config.flip else None, drawn=drawn)


def stored_plan(rows: Tensor, count: int, stored: int, random: torch.Generator) -> ViewPlan:
    """``count`` different ones of the ``stored`` views of each row."""
    order = torch.rand((stored, len(rows)), generator=random).argsort(0)
    return ViewPlan(rows, stored=order[:count])


@dataclass(frozen=True)
class Crops:
    """Square pieces of the images in a buffer, ready to be cut on any device."""

    flat: Tensor
    """(pixels x 3,) uint8."""
    first: Tensor
    """(crops,) number of each crop's first pixel."""
    width: Tensor
    """(crops,) pixels per line of the image it is cut from."""
    mirror: Tensor
    """(crops,) bool."""
    side: int

    def pin(self) -> Crops:
        """In pinned memory, from which copies to a GPU do not make the host wait."""
        return self._moved(lambda tensor: tensor.pin_memory())

    def to(self, device: torch.device) -> Crops:
        """On a device; on a GPU, to which pinned memory is copied, without waiting."""
        return self._moved(lambda tensor: tensor.to(device, non_blocking=device.type == "cuda"))

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Crops:
        return Crops(move(self.flat), move(self.first), move(self.width), move(self.mirror), self.side)

    def cut(self) -> Tensor:
        """(crops, side, side, 3) uint8."""
        if self.flat.device.type != "cpu":
            return self._cut_by_index()
        return mirror_crops(self.cut_lines(), self.mirror)

    def cut_lines(self) -> Tensor:
        """The crops on a CPU, not yet mirrored: whole lines are copied, which beats indexing pixels.

        In numpy, because this runs in reading threads: torch would start a team of threads for each of them.
        """
        flat, shape = self.flat.numpy(), (self.side, self.side, 3)
        out = np.empty((len(self.first), *shape), dtype=np.uint8)
        for target, first, width in zip(out, self.first.tolist(), self.width.tolist(), strict=True):
            np.copyto(target, as_strided(flat[3 * first :], shape, (3 * width, 3, 1), writeable=False))
        return torch.from_numpy(out)

    def _cut_by_index(self) -> Tensor:
        """All crops at once, by the number of every pixel."""
        pixels = self.flat.view(-1, 3)
        line = torch.arange(self.side, device=self.flat.device)
        out = []
        parts = (t.split(GATHERED) for t in (self.first, self.width, self.mirror))
        for first, width, mirror in zip(*parts, strict=True):
            column = torch.where(mirror[:, None], self.side - 1 - line, line)
            number = first[:, None, None] + line[None, :, None] * width[:, None, None] + column[:, None, :]
            out.append(pixels.index_select(0, number.flatten()).view(*number.shape, 3))
        return torch.cat(out)


def mirror_crops(crops: Tensor, mirror: Tensor) -> Tensor:
    """Mirror some crops in place; one by one, which is several times as fast as flipping a batch."""
    for place in mirror.nonzero()[:, 0].tolist():
        crops[place] = crops[place].flip(1)
    return crops


def plan_crops(pixels: Pixels, plan: ViewPlan, crop: int) -> Crops:
    """Where each view of a plan lies in the gathered images, view-major."""
    free_y, free_x = torch.from_numpy(pixels.height - crop), torch.from_numpy(pixels.width - crop)
    if plan.top is None or plan.left is None:
        y, x = ((free / 2.0).round().long()[None] for free in (free_y, free_x))
    else:
        # In double precision, as shares times counts are on paper: a share just below 1 stays below.
        y = (plan.top.double() * (free_y + 1)).long().minimum(free_y)
        x = (plan.left.double() * (free_x + 1)).long().minimum(free_x)
    width = torch.from_numpy(pixels.width).expand_as(y)
    first = torch.from_numpy(pixels.start) + y * width + x
    mirror = torch.zeros(y.shape, dtype=torch.bool) if plan.mirror is None else plan.mirror
    return Crops(pixels.flat, first.flatten(), width.flatten(), mirror.flatten(), crop)


class Normalise:
    """uint8 crops to network input."""

    def __init__(self, config: ViewConfig, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.mean = torch.tensor(config.mean, device=device, dtype=dtype).view(1, 3, 1, 1)
        self.std = torch.tensor(config.std, device=device, dtype=dtype).view(1, 3, 1, 1)
        # The order of the crops is what tensor cores like; on a CPU the plain one is a little faster (`make bench`).
        self.order = torch.channels_last if device.type == "cuda" else torch.contiguous_format

    def __call__(self, crops: Tensor) -> Tensor:
        """(crops, 3, side, side): scaled to 0..1, minus the mean, divided by the spread."""
        images = crops.permute(0, 3, 1, 2).contiguous(memory_format=self.order)
        return (images.to(self.mean.dtype) / 255 - self.mean) / self.std
