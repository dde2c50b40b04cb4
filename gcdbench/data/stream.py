"""Streams of views, read in advance by threads. The content never depends on the number of threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from gcdbench.data.ahead import ahead
from gcdbench.data.images import Images
from gcdbench.data.views import Crops, ViewPlan, plan_crops


def stream(
    images: Images, plans: Iterable[ViewPlan], crop: int, workers: int, device: torch.device
) -> Iterator[tuple[ViewPlan, Tensor]]:
    """Each plan with its uint8 crops on the device, in order.

    Plans are drawn from ``plans`` in the caller's thread. On a CPU the threads cut as well; for a GPU they fill pinned
    memory, and copying and cutting are queued on the device.
    """
    on_cpu = device.type == "cpu"

    def read(plan: ViewPlan) -> Crops | Tensor:
        crops = plan_crops(images.gather(plan.rows.numpy()), plan, crop)
        if on_cpu:
            return crops.cut()
        return crops.pin() if device.type == "cuda" else crops

    for plan, ready in ahead(read, plans, workers):
        yield plan, ready if isinstance(ready, Tensor) else ready.to(device).cut()
