"""A timm ViT split once: a frozen Trunk shared by everybody, and Tails that methods own and train."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from gcdbench.backbone.block import pick, read_block, reads_exactly
from gcdbench.errors import PluginError, UsageError
from gcdbench.ranks.whole import sharing, whole_batch


class Trunk(nn.Module):
    """Everything below the first trained block: frozen, in evaluation mode, without gradients."""

    def __init__(self, vit: nn.Module, blocks: int) -> None:
        super().__init__()
        self.stem = Stem(vit) if blocks > 0 else nn.Identity()
        self.blocks = nn.Sequential(*list(vit.blocks.children())[:blocks])  # type: ignore[union-attr]
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Trunk:
        """Stays in evaluation mode: a trunk pass has no batch statistics and no dropout."""
        return super().train(False)

    def raw(self, images: Tensor) -> Tensor:
        """Tokens of a batch of images; whoever calls this decides about gradients."""
        return self.blocks(self.stem(images))

    def forward(self, images: Tensor) -> Tensor:
        """Tokens of a batch of images, as an ordinary tensor that tails can train on."""
        with torch.inference_mode():
            tokens = self.raw(images)
        return tokens.clone()


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
        return vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))


class Tail(nn.Module):
    """A trainable copy of the last blocks. Reads CLS and any extra tokens; the final norm is frozen."""

    def __init__(self, vit: nn.Module, start: int, *, norm: bool, extra_tokens: int) -> None:
        super().__init__()
        self.stem = copy.deepcopy(Stem(vit)) if start == 0 else None
        self.blocks = copy.deepcopy(nn.ModuleList(list(vit.blocks.children())[start:]))  # type: ignore[union-attr]
        # The final norm belongs to the backbone even where a method skips it, so it is kept and counted.
        self.norm = copy.deepcopy(vit.norm)
        self.norm.requires_grad_(False)
        self.use_norm = norm
        self.extra_tokens = extra_tokens
        self.blocks.requires_grad_(True)
        if self.stem is not None:
            self.stem.requires_grad_(True)
        self.exact_read = reads_exactly(self.blocks[-1])

    def forward(self, tokens: Tensor, extra: Tensor | None = None) -> Tensor:
        """(rows, tokens, dim) to (rows, 1 + extra, dim): CLS first, then the extra tokens.

        ``extra`` is (extra, dim), shared by all rows and appended before the last block. In a training step on several
        ranks the tokens are those of this rank's rows, and what is returned is that of the whole batch.
        """
        if sharing():
            _refuse_chance(self)
        x = tokens if self.stem is None else self.stem(tokens)
        for block in list(self.blocks)[:-1]:
            x = block(x)
        count = 0 if extra is None else len(extra)
        if count != self.extra_tokens:
            raise ValueError(f"the tail was made for {self.extra_tokens} extra tokens and got {count}")
        if extra is not None:
            x = torch.cat([x, extra.to(x.dtype).expand(len(x), -1, -1)], dim=1)
        last = self.blocks[-1]
        x = read_block(last, x, count) if self.exact_read else pick(last(x), count)
        return whole_batch(self.norm(x) if self.use_norm else x)  # type: ignore[operator]


def _refuse_chance(tail: nn.Module) -> None:
    """What a rank drops from its own rows is not what one process would drop."""
    for module in tail.modules():
        if module.training and max(getattr(module, "p", 0) or 0, getattr(module, "drop_prob", 0) or 0) > 0:
            raise PluginError(
                f"The tail drops at random ({type(module).__name__}), which cannot be the same on several processes as "
                "on one: train in one process, or without."
            )


class SplitViT:
    """A backbone ready for a run: one trunk, and as many tails as somebody asks for."""

    def __init__(self, vit: nn.Module, train_from: int = -1) -> None:
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
        self.depth = depth
        self.embed_dim: int = vit.embed_dim  # type: ignore[assignment]
        self.num_tokens: int = vit.patch_embed.num_patches + 1  # type: ignore[union-attr, operator, assignment]
        self.trunk = Trunk(vit, start)
        self._vit = vit

    def tail(self, *, norm: bool = True, extra_tokens: int = 0) -> Tail:
        """A fresh trainable copy of the last blocks."""
        return Tail(self._vit, self.start, norm=norm, extra_tokens=extra_tokens)

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
