"""Backbones with a short name. Any other timm ViT works by its timm name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class BackboneSpec:
    """How a named backbone is built and where its weights come from."""

    name: str
    description: str
    timm_name: str | None = None
    """Model and weights in timm's hub notation."""
    shipped: str | None = None
    """File of weights inside this package."""
    geometry: dict[str, Any] = field(default_factory=dict)
    """Arguments of timm's VisionTransformer where there is no timm name."""


CATALOGUE = {
    spec.name: spec
    for spec in (
        BackboneSpec("dino", "DINO ViT-B/16, ImageNet-1k, no labels", timm_name="vit_base_patch16_224.dino"),
        BackboneSpec(
            "dinov2",
            "DINOv2 ViT-B/14, LVD-142M; position embedding interpolated to the crop",
            timm_name="vit_base_patch14_dinov2.lvd142m",
        ),
        BackboneSpec(
            "digits-vit",
            "4-block ViT for the embedded digits, self-supervised; weights ship with gcdbench",
            shipped="digits_vit.safetensors",
            geometry={"patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 4},
        ),
    )
}
"""Short names, in the order they are listed."""


def short_name(name: str) -> str:
    """The short name of a backbone that is given by its timm name."""
    return next((spec.name for spec in CATALOGUE.values() if spec.timm_name == name), name)
