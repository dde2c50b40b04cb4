"""A tiny task and a small batch, for tests of single losses."""

from __future__ import annotations

import torch

from gcdbench.backbone.timm_import import import_timm
from gcdbench.backbone.vit import SplitViT
from gcdbench.config.sections import TrainConfig
from gcdbench.contracts import Batch, Task

import_timm()
from timm.models.vision_transformer import VisionTransformer  # noqa: E402


def tiny_task(num_base: int = 3, num_classes: int = 5, train: TrainConfig | None = None, train_from: int = -1) -> Task:
    """Three base and two novel classes on a ViT of width 24."""
    torch.manual_seed(0)
    vit = VisionTransformer(img_size=8, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=0)
    return Task(
        num_base, num_classes, SplitViT(vit, train_from), train or TrainConfig(), 3, torch.Generator().manual_seed(1)
    )


def batch_of(rows: int = 12, labelled: int = 6, shape: tuple[int, ...] = (5, 24)) -> Batch:
    """The first rows are labelled, two of each base class."""
    tokens = torch.randn(2 * rows, *shape, generator=torch.Generator().manual_seed(2))
    known = torch.arange(rows) < labelled
    target = torch.where(known, torch.arange(rows) % 3, -1)
    return Batch(tokens, target, known, torch.arange(rows))
