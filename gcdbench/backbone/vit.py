"""A timm ViT split once: a frozen trunk shared by everybody, and tails that methods own and train."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from gcdbench.backbone.split import FrozenTrunk, SplitBackbone
from gcdbench.backbone.tail import Tail
from gcdbench.errors import UsageError


class Trunk(FrozenTrunk):
    """The stem and the blocks below the first trained one."""

    def __init__(self, vit: nn.Module, blocks: int) -> None:
        super().__init__()
        self.stem = Stem(vit) if blocks > 0 else nn.Identity()
        self.blocks = nn.Sequential(*list(vit.blocks.children())[:blocks])  # type: ignore[union-attr]
        self.requires_grad_(False).eval()

    def raw(self, images: Tensor) -> Tensor:
        """Tokens of a batch of images; whoever calls this decides about gradients."""
        found: Tensor = self.blocks(self.stem(images))
        return found


class Stem(nn.Module):
    """Patch embedding, position embedding and prefix tokens of a timm ViT."""

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = copy.copy(vit)
        # A shallow copy without blocks and head: parameters are shared, not counted twice.
        self.vit._modules = {
            name: module
            for name, module in vit._modules.items()
            if name not in ("blocks", "norm", "fc_norm", "head", "head_drop", "attn_pool")
        }

    def forward(self, images: Tensor) -> Tensor:
        """(rows, 3, side, side) to (rows, tokens, dim)."""
        vit: Any = self.vit
        found: Tensor = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
        return found


class SplitViT(SplitBackbone):
    """A backbone ready for a run: one trunk, and as many tails as are asked for."""

    def __init__(self, vit: nn.Module, train_from: int = -1, folded: bool = False) -> None:
        depth = len(vit.blocks)  # type: ignore[arg-type]
        start = train_from + depth if train_from < 0 else train_from
        if not 0 <= start < depth:
            raise UsageError(
                f"backbone.train_from is {train_from}, but this backbone has {depth} blocks: "
                f"use {-depth} to {depth - 1}."
            )
        if getattr(vit, "cls_token", None) is None:
            raise UsageError("This backbone has no CLS token; gcdbench reads CLS, so choose a ViT that has one.")
        if isinstance(vit.norm, nn.Identity):
            raise UsageError("This backbone has no final norm before pooling; choose a ViT that pools CLS.")
        self.start = start
        self.folded = folded
        self.depth = depth
        self.embed_dim: int = vit.embed_dim  # type: ignore[assignment]
        self.num_tokens: int = vit.patch_embed.num_patches + 1  # type: ignore[union-attr, operator, assignment]
        self.trunk = Trunk(vit, start)
        patches: Any = vit.patch_embed
        self.pixels = (patches.img_size[0], patches.patch_size[0]) if start == 0 else None
        self._vit = vit

    def tail(self, *, norm: bool = True, extra_tokens: int = 0) -> Tail:
        """A fresh trainable copy of the last blocks."""
        vit: Any = self._vit
        return Tail(
            copy.deepcopy(nn.ModuleList(list(vit.blocks.children())[self.start :])),
            copy.deepcopy(vit.norm),
            use_norm=norm,
            extra_tokens=extra_tokens,
            stem=copy.deepcopy(Stem(vit)) if self.start == 0 else None,
            folded=self.folded,
        )

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> SplitViT:
        """Move trunk and template to a device."""
        self._vit.to(device, dtype)
        self.trunk.to(device, dtype)
        if device.type == "cuda":  # the order in which views arrive there; on a CPU it makes no difference
            embedding: Any = self._vit.patch_embed
            embedding.to(memory_format=torch.channels_last)
        return self

    def num_parameters(self) -> int:
        """Parameters of the whole backbone without a classifier."""
        return sum(p.numel() for p in self._vit.parameters())
