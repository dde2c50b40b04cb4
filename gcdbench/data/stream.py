"""Streams of views, read in advance by threads. The content never depends on the number of threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from gcdbench.data.images import Images
from gcdbench.data.prefetch import ahead
from gcdbench.data.views import Crops, ViewPlan, mirror_crops, plan_crops


def stream(
    images: Images, plans: Iterable[ViewPlan], crop: int, workers: int, device: torch.device
) -> Iterator[tuple[ViewPlan, Tensor]]:
    """Each plan with its uint8 crops on the device, in order.

    Plans are drawn from ``plans`` in the caller's thread. On a CPU the reading threads also cut; for a GPU they fill
    pinned memory, and copying and cutting are queued on the device.
    """
    if device.type == "cpu":
        yield from _on_cpu(images, plans, crop, workers)
        return

    def read(plan: ViewPlan) -> Crops:
        crops = plan_crops(images.gather(plan.rows.numpy()).compact(), plan, crop)
        return crops.pin() if device.type == "cuda" else crops

    for plan, ready in ahead(read, plans, workers):
        yield plan, ready.to(device).cut()


def _on_cpu(images: Images, plans: Iterable[ViewPlan], crop: int, workers: int) -> Iterator[tuple[ViewPlan, Tensor]]:
    def read(plan: ViewPlan) -> tuple[Tensor, Tensor]:
        crops = plan_crops(images.gather(plan.rows.numpy()), plan, crop)
        return crops.cut_lines(), crops.mirror

    for plan, (lines, mirror) in ahead(read, plans, workers):
        yield plan, mirror_crops(lines, mirror)
