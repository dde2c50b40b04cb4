"""Networks with a feature map as backbones: the cells are tokens, their mean is CLS, and a fresh block is the tail.

The block's output projections start at zero, so that training starts from the network's own pooled features. The
network itself is frozen whole: nothing in it is trained, so its map (often 16 to 49 cells) can be stored.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gcdbench.backbone.projection import Projection
from gcdbench.backbone.split import FrozenTrunk, SplitBackbone
from gcdbench.backbone.tail import Tail
from gcdbench.config.sections import BackboneConfig
from gcdbench.errors import UsageError

CPU_PASS = 32
"""Images that go through the network at once on a CPU. The maps of its first layers are large: those of more images
leave the processor's cache, and the memory they take is given back and fetched again (half the speed at 128)."""


class FeatureMapTrunk(FrozenTrunk):
    """A whole network without its classifier, and the projection of its cells."""

    def __init__(self, network: nn.Module, projection: Projection | None = None) -> None:
        super().__init__()
        self.network = network
        self.projection = projection
        self.requires_grad_(False).eval()

    def raw(self, images: Tensor) -> Tensor:
        """(rows, 1 + cells, channels or dims): the mean of the cells, then the cells, line by line."""
        # Convolutions of these networks are twice as fast in this order, on CPUs too.
        images = images.contiguous(memory_format=torch.channels_last)
        parts = [images] if images.device.type != "cpu" else images.split(CPU_PASS)
        cells = torch.cat([self._cells(part) for part in parts])
        if cells.dtype in (torch.float16, torch.bfloat16):  # as the residual stream of a ViT under autocast
            cells = cells.float()
        tokens = torch.cat([cells.mean(1, keepdim=True), cells], dim=1)
        return tokens if self.projection is None else self.projection(tokens)

    def _cells(self, images: Tensor) -> Tensor:
        network: Any = self.network
        return as_cells(network.forward_features(images), network.num_features)


def as_cells(found: Any, channels: int) -> Tensor:
    """A map with the channels in the second or the last place as (rows, cells, channels)."""
    if isinstance(found, Tensor) and found.ndim == 4:
        if found.shape[1] == channels:
            return found.flatten(2).transpose(1, 2)
        if found.shape[3] == channels:
            return found.flatten(1, 2)
    raise UsageError("it gives no feature map (rows, channels, height, width)")


def pooled_norm(network: nn.Module, channels: int) -> nn.Module | None:
    """The norm that a network applies to its pooled map (ConvNeXt does), for single tokens; None if it has none.

    A UsageError if it has one that is no LayerNorm of the channels.
    """
    norm = getattr(getattr(network, "head", None), "norm", None)
    if norm is None or isinstance(norm, nn.Identity):
        return None
    if not isinstance(norm, nn.LayerNorm) or tuple(norm.normalized_shape) != (channels,):
        raise UsageError(
            f"What this backbone does to its pooled map ({type(norm).__name__}) is no LayerNorm of the map's channels: "
            "choose another final norm with backbone.tail_norm=layer, or a PCA, behind which there is none."
        )
    plain = nn.LayerNorm(norm.normalized_shape, norm.eps, norm.elementwise_affine)
    plain.load_state_dict(norm.state_dict())
    return plain


class SplitFeatureMap(SplitBackbone):
    """A network with a feature map, ready for a run."""

    def __init__(
        self, network: nn.Module, image_size: int, config: BackboneConfig, projection: Projection | None = None
    ) -> None:
        if config.train_from != -1:
            raise UsageError(
                f"backbone.train_from is {config.train_from} (chosen, or what the method asks for), but "
                f"'{config.name}' is a network with a feature map, which is frozen whole: only -1 is possible, and "
                "backbone.tail_depth says how many blocks are trained behind it."
            )
        self.start = 0
        self.config = config
        self.image_size = image_size
        self.trunk: FeatureMapTrunk = FeatureMapTrunk(network, projection)
        tokens, channels = _shape(network, image_size, config.name)
        if config.pca is not None and config.pca > channels:
            raise UsageError(f"backbone.pca is {config.pca}, but '{config.name}' has only {channels} channels.")
        self.channels = channels
        self.embed_dim: int = config.pca or channels
        self.num_tokens = tokens
        self._width = config.tail_width or self.embed_dim
        if self._width % config.tail_heads:
            raise UsageError(
                f"The tail's width {self._width} cannot be shared by {config.tail_heads} heads (backbone.tail_heads)."
            )

    @property
    def network(self) -> nn.Module:
        """The frozen network."""
        return self.trunk.network

    def _final_norm(self) -> nn.Module:
        if self.config.tail_norm == "layer":
            return nn.LayerNorm(self.embed_dim, elementwise_affine=False)
        own = None if self.config.pca is not None else pooled_norm(self.network, self.channels)
        return nn.Identity() if own is None else own

    def tail(self, *, norm: bool = True, extra_tokens: int = 0) -> Tail:
        """Fresh blocks that change nothing yet, where the network is. Their other weights are drawn from the ambient
        random numbers of the host, which whoever builds a method has derived from the run's seed."""
        blocks = nn.ModuleList([self._block() for _ in range(self.config.tail_depth)])
        final = self._final_norm() if norm else nn.Identity()
        some = next(self.network.parameters())
        folded = self.config.tail_read == "folded"
        tail = Tail(blocks, final, use_norm=norm, extra_tokens=extra_tokens, folded=folded)
        return tail.to(some.device, some.dtype)

    def _block(self) -> nn.Module:
        from timm.layers.attention import Attention
        from timm.models.vision_transformer import Block

        dim, heads, width = self.embed_dim, self.config.tail_heads, self._width
        block: Any = Block(dim, num_heads=1, mlp_ratio=4 * width / dim, qkv_bias=True)
        block.attn = Attention(dim, heads, attn_head_dim=width // heads, qkv_bias=True)
        for linear in (block.attn.qkv, block.mlp.fc1):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        for linear in (block.attn.proj, block.mlp.fc2):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
        found: nn.Module = block
        return found

    def projected(self, projection: Projection) -> SplitFeatureMap:
        """The same network with a fitted projection."""
        return SplitFeatureMap(self.network, self.image_size, self.config, projection)

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> SplitFeatureMap:
        """Move network and projection; tails follow."""
        self.trunk.to(device, dtype)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self

    def num_parameters(self) -> int:
        """Parameters of the network without a classifier; the tail's blocks are no part of it."""
        return sum(p.numel() for p in self.network.parameters())


def _shape(network: Any, image_size: int, name: str) -> tuple[int, int]:
    """Tokens of a view (the mean included) and channels."""
    some = next(network.parameters())
    image = torch.zeros((1, 3, image_size, image_size), device=some.device, dtype=some.dtype)
    was_training = network.training
    try:
        with torch.inference_mode():
            cells = as_cells(network.eval().forward_features(image), network.num_features)
    except UsageError as fault:
        raise UsageError(f"The backbone '{name}' cannot be used: {fault}.") from fault
    except Exception as fault:  # networks complain in many ways about an image that is too small or of another size
        raise UsageError(f"The backbone '{name}' cannot take images of {image_size} px: {fault}") from fault
    finally:
        network.train(was_training)
    return cells.shape[1] + 1, cells.shape[2]
