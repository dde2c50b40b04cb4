"""From a config to a split backbone with known weights."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gcdbench.backbone.catalogue import CATALOGUE, BackboneSpec
from gcdbench.backbone.timm_import import import_timm
from gcdbench.backbone.vit import SplitViT
from gcdbench.backbone.weights import load_into, read_state, weights_hash
from gcdbench.config import BackboneConfig
from gcdbench.engine.seeding import fenced_rng
from gcdbench.errors import DataError, UsageError, nearest, unknown


@dataclass(frozen=True)
class BackboneInfo:
    """What goes into the record."""

    name: str
    architecture: str
    weights: str
    weights_hash: str
    parameters: int
    image_size: int


def describe(name: str) -> BackboneSpec:
    """The spec of a short name or of a timm ViT name; a UsageError with the nearest name otherwise."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    timm = import_timm()
    if not timm.is_model(name):
        vits = timm.list_models("vit_*") + timm.list_models("deit_*")
        close = nearest(name, [*CATALOGUE, *vits])
        hint = f" Did you mean '{close}'?" if close else ""
        raise UsageError(f"There is no backbone '{name}'.{hint} Use {', '.join(CATALOGUE)} or the name of a timm ViT.")
    architecture, _, tag = name.partition(".")
    tags = [full for full in timm.list_pretrained(f"{architecture}.*") if full.startswith(f"{architecture}.")]
    if tag and name not in tags:
        raise unknown(f"set of weights for {architecture} called", name, tags)
    return BackboneSpec(name, "a timm ViT by name", timm_name=name)


def normalisation(spec: BackboneSpec) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The mean and std the pretrained weights expect; None for the protocol's own."""
    if spec.timm_name is None or spec.name in CATALOGUE:
        return None
    timm = import_timm()
    cfg = timm.get_pretrained_cfg(spec.timm_name)
    return None if cfg is None else (tuple(cfg.mean), tuple(cfg.std))


def build(spec: BackboneSpec, image_size: int, *, pretrained: bool = False) -> nn.Module:
    """The ViT without a classifier. On the meta device it allocates nothing."""
    timm = import_timm()
    from timm.models.vision_transformer import VisionTransformer

    if spec.timm_name is None:
        return VisionTransformer(img_size=image_size, num_classes=0, **spec.geometry)
    try:
        vit = timm.create_model(spec.timm_name, pretrained=pretrained, num_classes=0, img_size=image_size)
    except AssertionError as fault:
        raise UsageError(f"The backbone '{spec.name}' cannot be built at {image_size} px: {fault}.") from fault
    except TypeError:  # the network takes no image size, so it is none of the ViTs
        vit = None
    if not isinstance(vit, VisionTransformer):
        raise UsageError(f"The backbone '{spec.name}' is not a ViT; choose a timm ViT with a CLS token.")
    return vit


def load_backbone(config: BackboneConfig, image_size: int, seed: int = 0) -> tuple[SplitViT, BackboneInfo]:
    """Build the configured backbone, fill in its weights and split it."""
    spec = describe(config.name)
    with fenced_rng(seed, "backbone"):
        vit, source = _with_weights(spec, config.weights, image_size)
    split = SplitViT(vit, config.train_from)
    info = BackboneInfo(
        name=config.name,
        architecture=spec.timm_name or f"VisionTransformer({_spell(spec.geometry)})",
        weights=source,
        weights_hash=weights_hash(vit),
        parameters=split.num_parameters(),
        image_size=image_size,
    )
    return split, info


def _with_weights(spec: BackboneSpec, weights: str, image_size: int) -> tuple[nn.Module, str]:
    if weights == "random":
        return build(spec, image_size), "random"
    if weights != "pretrained":
        vit = build(spec, image_size)
        path = Path(weights).expanduser()
        load_into(vit, read_state(path), str(path))
        return vit, f"file {path.name}"
    if spec.shipped is not None:
        vit = build(spec, image_size)
        with resources.as_file(resources.files("gcdbench.backbone") / spec.shipped) as path:
            load_into(vit, read_state(path), spec.shipped)
        return vit, f"shipped {spec.shipped}"
    try:
        return build(spec, image_size, pretrained=True), f"hub {spec.timm_name}"
    except UsageError:
        raise
    except Exception as fault:  # the hub client raises many kinds; all mean that the weights cannot be had
        raise DataError(
            f"The pretrained weights of '{spec.name}' ({spec.timm_name}) are neither in the hub cache nor can "
            f"they be downloaded ({type(fault).__name__}). Download the checkpoint on a machine with internet "
            "and pass it with --set backbone.weights=FILE.safetensors (or .pth), or fill the hub cache."
        ) from fault


def on_meta(spec: BackboneSpec, image_size: int, train_from: int = -1) -> SplitViT:
    """The backbone's shape without its numbers, for counting parameters."""
    with torch.device("meta"):
        return SplitViT(build(spec, image_size), train_from)


def _spell(geometry: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in geometry.items())
