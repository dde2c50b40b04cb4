"""What every split backbone offers: one frozen trunk, and as many tails as are asked for."""

from __future__ import annotations

import abc

import torch
from torch import Tensor, nn

from gcdbench.backbone.tail import Tail


class FrozenTrunk(nn.Module, abc.ABC):
    """Everything below the first trained block: frozen, in evaluation mode, without gradients."""

    def train(self, mode: bool = True) -> FrozenTrunk:
        """Stays in evaluation mode: a trunk pass has no batch statistics and no dropout."""
        return super().train(False)

    @abc.abstractmethod
    def raw(self, images: Tensor) -> Tensor:
        """Tokens of a batch of images; whoever calls this decides about gradients."""

    def forward(self, images: Tensor) -> Tensor:
        """Tokens of a batch of images, as an ordinary tensor that tails can train on."""
        with torch.inference_mode():
            tokens = self.raw(images)
        return tokens.clone()


class SplitBackbone(abc.ABC):
    """A backbone ready for a run."""

    start: int
    """First trained block."""
    embed_dim: int
    """Width of a token."""
    num_tokens: int
    """Tokens of a view, CLS included."""
    pixels: tuple[int, int] | None = None
    """Sides of an image and of a patch where tails see pixels."""
    trunk: FrozenTrunk

    @abc.abstractmethod
    def tail(self, *, norm: bool = True, extra_tokens: int = 0) -> Tail:
        """A fresh trainable tail; ``norm`` applies the backbone's final norm (kept frozen) to what is read."""

    @abc.abstractmethod
    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> SplitBackbone:
        """Move trunk and template to a device."""

    @abc.abstractmethod
    def num_parameters(self) -> int:
        """Parameters of the whole backbone without a classifier."""
