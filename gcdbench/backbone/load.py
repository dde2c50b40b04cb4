"""From a config to a split backbone with known weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gcdbench.backbone.catalogue import CATALOGUE, BackboneSpec
from gcdbench.backbone.feature_map import SplitFeatureMap
from gcdbench.backbone.projection import Projection
from gcdbench.backbone.split import SplitBackbone
from gcdbench.backbone.timm_import import import_timm
from gcdbench.backbone.vit import SplitViT
from gcdbench.backbone.weights import hub, load_into, read_state, weights_hash
from gcdbench.config.sections import BackboneConfig
from gcdbench.errors import DataError, UsageError, nearest, unknown
from gcdbench.system.seeding import fenced_rng


@dataclass(frozen=True)
class BackboneInfo:
    """What goes into the record."""

    name: str
    architecture: str
    weights: str
    weights_hash: str
    parameters: int
    image_size: int
    projection: Mapping[str, Any] | None = None
    """Of a fitted PCA: its width, the images it was fitted on, the share of variance it keeps, and its hash."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data; without what there is not."""
        return {name: value for name, value in vars(self).items() if value is not None}


def describe(name: str) -> BackboneSpec:
    """The spec of a short name or of a timm name; a UsageError with the nearest name otherwise."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    timm = import_timm()
    if not timm.is_model(name):
        close = nearest(name, [*CATALOGUE, *timm.list_models()])
        hint = f" Did you mean '{close}'?" if close else ""
        raise UsageError(
            f"There is no backbone '{name}'.{hint} Use {', '.join(CATALOGUE)}, or the timm name of a ViT or of a "
            "network with a feature map."
        )
    architecture, _, tag = name.partition(".")
    tags = [full for full in timm.list_pretrained(f"{architecture}.*") if full.startswith(f"{architecture}.")]
    if tag and name not in tags:
        raise unknown(f"set of weights for {architecture} called", name, tags)
    return BackboneSpec(name, "a timm network by name", timm_name=name)


@cache
def has_feature_map(name: str) -> bool:
    """Whether a backbone is a network with a feature map rather than a ViT; nothing but its class is asked for."""
    if name in CATALOGUE:
        return False
    spec = describe(name)
    from timm.models.vision_transformer import VisionTransformer

    with torch.device("meta"):
        return not isinstance(import_timm().create_model(spec.timm_name, num_classes=0), VisionTransformer)


def input_config(name: str) -> dict[str, Any]:
    """The views that timm's configuration of the model asks for, as `views.KEY`; empty for the protocol's own.

    Of a ViT that is normalisation alone: it is built at the size of the crop. Networks with a feature map are shown
    images of the size they were trained on, cut from images 8/7 as large, as the protocol does it.
    """
    spec = describe(name)
    if spec.timm_name is None or spec.name in CATALOGUE:
        return {}
    cfg = import_timm().get_pretrained_cfg(spec.timm_name)
    if cfg is None:
        return {}
    found: dict[str, Any] = {"views.mean": tuple(cfg.mean), "views.std": tuple(cfg.std)}
    if has_feature_map(name):
        side = int(cfg.input_size[-1])
        found |= {"views.crop": side, "views.resize": side * 8 // 7}
    return found


def build(spec: BackboneSpec, image_size: int, *, pretrained: bool = False) -> nn.Module:
    """The network without a classifier. On the meta device it allocates nothing."""
    timm = import_timm()
    from timm.models.vision_transformer import VisionTransformer

    if spec.timm_name is None:
        return VisionTransformer(img_size=image_size, num_classes=0, **spec.geometry)
    network: nn.Module
    try:
        network = timm.create_model(spec.timm_name, pretrained=pretrained, num_classes=0, img_size=image_size)
    except TypeError:  # a network that takes no image size because any will do
        network = timm.create_model(spec.timm_name, pretrained=pretrained, num_classes=0)
    return network


def _buildable(spec: BackboneSpec, image_size: int) -> None:
    """A sentence if a network cannot be built at a size; without weights, so that nothing else can be the reason."""
    try:
        with torch.device("meta"):
            build(spec, image_size)
    except Exception as fault:  # architectures complain in many ways
        raise UsageError(f"The backbone '{spec.name}' cannot be built at {image_size} px: {fault}") from fault


def split(network: nn.Module, config: BackboneConfig, image_size: int) -> SplitBackbone:
    """A network as trunk and tails. One that wants a PCA is not ready before `SplitFeatureMap.projected`."""
    if has_feature_map(config.name):
        return SplitFeatureMap(network, image_size, config)
    odd = config.map_keys()
    if odd:
        raise UsageError(
            f"{odd[0]} is for networks with a feature map; '{config.name}' is a ViT, whose own blocks are trained."
        )
    return SplitViT(network, config.train_from, config.tail_read == "folded")


def load_backbone(config: BackboneConfig, image_size: int, seed: int = 0) -> tuple[SplitBackbone, BackboneInfo]:
    """Build the configured backbone, fill in its weights and split it."""
    spec = describe(config.name)
    _buildable(spec, image_size)
    with fenced_rng(seed, "backbone"):
        network, source = _with_weights(spec, config.weights, image_size)
    backbone = split(network, config, image_size)
    info = BackboneInfo(
        name=config.name,
        architecture=spec.timm_name or f"VisionTransformer({_spell(spec.geometry)})",
        weights=source,
        weights_hash=weights_hash(network),
        parameters=backbone.num_parameters(),
        image_size=image_size,
    )
    return backbone, info


def _with_weights(spec: BackboneSpec, weights: str, image_size: int) -> tuple[nn.Module, str]:
    if weights == "random":
        return build(spec, image_size), "random"
    if weights != "pretrained":
        network = build(spec, image_size)
        path = Path(weights).expanduser()
        load_into(network, read_state(path), str(path))
        return network, f"file {path.name}"
    if spec.shipped is not None:
        network = build(spec, image_size)
        with resources.as_file(resources.files("gcdbench.backbone") / spec.shipped) as path:
            load_into(network, read_state(path), spec.shipped)
        return network, f"shipped {spec.shipped}"
    try:
        with hub():
            return build(spec, image_size, pretrained=True), f"hub {spec.timm_name}"
    except Exception as fault:  # the hub client raises many kinds; all mean that the weights cannot be had
        name = f"'{spec.name}'" + ("" if spec.name == spec.timm_name else f" ({spec.timm_name})")
        raise DataError(
            f"The pretrained weights of {name} are neither in the hub cache nor can "
            f"they be downloaded ({type(fault).__name__}). Download the checkpoint on a machine with internet "
            "and pass it with --set backbone.weights=FILE.safetensors (or .pth), or fill the hub cache."
        ) from fault


def on_meta(config: BackboneConfig, image_size: int) -> SplitBackbone:
    """The backbone's shape without its numbers, for counting parameters and operations."""
    with torch.device("meta"):
        backbone = split(build(describe(config.name), image_size), config, image_size)
        if isinstance(backbone, SplitFeatureMap) and config.pca is not None:
            mean, components = torch.empty(backbone.channels), torch.empty(backbone.channels, config.pca)
            backbone = backbone.projected(Projection(mean, components, torch.empty(())))
            backbone.to(torch.device("meta"))
        return backbone


def _spell(geometry: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in geometry.items())
