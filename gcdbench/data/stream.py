"""Streams of views: in this process, or prepared by workers. The content never depends on the number of workers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gcdbench.data.images import ResizedImages
from gcdbench.data.views import ViewPlan, cut
from gcdbench.errors import GcdbenchError


def default_workers(images: ResizedImages) -> int:
    """None where images are kept in memory; otherwise one per core, at most eight."""
    return 0 if images.fits else min(8, os.cpu_count() or 1)


class _Cutter(Dataset[Tensor | GcdbenchError]):
    """Gives DataLoader workers a plan and takes back its pixels, or the sentence that says why there are none."""

    def __init__(self, images: ResizedImages, plans: list[ViewPlan], crop: int) -> None:
        self.images = images
        self.plans = plans
        self.crop = crop

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, number: int) -> Tensor | GcdbenchError:
        try:
            return cut(self.images, self.plans[number], self.crop)
        except GcdbenchError as fault:  # raised in a worker, it would arrive wrapped in that worker's traceback
            return type(fault)(str(fault))


def stream(
    images: ResizedImages, plans: Iterable[ViewPlan], crop: int, workers: int, pin: bool
) -> Iterator[tuple[ViewPlan, Tensor]]:
    """Each plan with its uint8 views, in order."""
    listed = list(plans)
    if workers == 0:
        for plan in listed:
            views = cut(images, plan, crop)
            yield plan, views.pin_memory() if pin else views
        return
    loader = DataLoader(
        _Cutter(images, listed, crop),
        batch_size=None,
        shuffle=False,
        num_workers=workers,
        pin_memory=pin,
        prefetch_factor=2,
        generator=torch.Generator(),
    )
    for plan, found in zip(listed, loader, strict=True):
        if isinstance(found, GcdbenchError):
            raise found
        yield plan, found
