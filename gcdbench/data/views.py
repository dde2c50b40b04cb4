"""Views: crops and flips of resized images, decided by numbers drawn beforehand, so that workers draw nothing.

Training view: random crop, mirrored half of the time. Evaluation view: centre crop. The colour jitter that papers
list is a no-op in the published code (it is called without arguments) and therefore absent here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gcdbench.config import ViewConfig
from gcdbench.data.images import ResizedImages


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

    @property
    def views(self) -> int:
        """Views of each row."""
        return 1 if self.top is None else len(self.top)


def random_plan(rows: Tensor, config: ViewConfig, random: torch.Generator, views: int | None = None) -> ViewPlan:
    """Independent random views of each row."""
    shape = (config.count if views is None else views, len(rows))
    top = torch.rand(shape, generator=random)
    left = torch.rand(shape, generator=random)
    mirror = torch.rand(shape, generator=random) < 0.5
    return ViewPlan(rows, top, left, mirror if config.flip else None)


def cut(images: ResizedImages, plan: ViewPlan, crop: int) -> Tensor:
    """(views x rows, 3, crop, crop) uint8, view-major."""
    count = len(plan.rows)
    out = torch.empty((plan.views * count, 3, crop, crop), dtype=torch.uint8)
    # Plain lists: reading single numbers out of tensors would cost more than the cropping itself.
    tops, lefts = (None if p is None else p.tolist() for p in (plan.top, plan.left))
    mirrors = None if plan.mirror is None else plan.mirror.tolist()
    for column, row in enumerate(plan.rows.tolist()):
        image = images[row]
        free_y, free_x = image.shape[1] - crop, image.shape[2] - crop
        for view in range(plan.views):
            if tops is None or lefts is None:
                y, x = round(free_y / 2.0), round(free_x / 2.0)
            else:
                y = min(int(tops[view][column] * (free_y + 1)), free_y)
                x = min(int(lefts[view][column] * (free_x + 1)), free_x)
            piece = image[:, y : y + crop, x : x + crop]
            if mirrors is not None and mirrors[view][column]:
                piece = piece.flip(2)
            out[view * count + column] = piece
    return out


class Normalise:
    """uint8 views to network input on the device."""

    def __init__(self, config: ViewConfig, device: torch.device) -> None:
        self.device = device
        self.mean = torch.tensor(config.mean, device=device).view(1, 3, 1, 1)
        self.std = torch.tensor(config.std, device=device).view(1, 3, 1, 1)

    def __call__(self, views: Tensor) -> Tensor:
        """Move (without waiting), scale to 0..1, subtract the mean, divide by the spread."""
        moved = views.to(self.device, non_blocking=True)
        return (moved.float() / 255 - self.mean) / self.std
