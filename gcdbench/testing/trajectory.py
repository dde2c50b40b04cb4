"""Replays a recorded reference trajectory through an installed method and measures the deviation.

The recording is an .npz file: a tiny ViT and heads (`init.*`), a few fixed batches, and for each parameter-group
variant every loss term of every step (`<variant>.losses`, columns `loss_names`) and the final heads
(`<variant>.final.*`). Its `config` entry is JSON: geometry, classes, schedule and settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcdbench.backbone.timm_import import import_timm
from gcdbench.backbone.vit import SplitViT
from gcdbench.backbone.weights import load_into
from gcdbench.config import Layer, TrainConfig, resolve
from gcdbench.contracts import Batch, Method, Progress, Task
from gcdbench.engine.seeding import fenced_rng, generator
from gcdbench.errors import DataError, PluginError, unknown
from gcdbench.files import not_a_file
from gcdbench.presets import preset_layers

TOLERANCE = 1e-4
"""Largest deviation that float32 arithmetic explains."""


@dataclass(frozen=True)
class Deviation:
    """How far one quantity is from the recording."""

    name: str
    largest: float
    at_step: int | None = None


class Recording:
    """A trajectory file, checked for what a replay needs."""

    def __init__(self, path: Path) -> None:
        odd = not_a_file(path)
        if odd is not None:
            raise DataError(f"The trajectory file {path} {odd}.")
        try:
            with np.load(path, allow_pickle=False) as archive:
                self.arrays = {name: archive[name] for name in archive.files}
            self.settings: dict[str, Any] = json.loads(str(self.arrays["config"]))
            self.loss_names = [str(name) for name in self.arrays["loss_names"]]
        except Exception as fault:  # a damaged archive can raise almost anything, and numpy would advise to trust it
            raise DataError(f"The file {path} is not a recorded trajectory ({type(fault).__name__}).") from fault

    def variants(self) -> list[str]:
        """Names of the recorded parameter-group variants."""
        return [name.removesuffix(".losses") for name in self.arrays if name.endswith(".losses")]

    def initial(self) -> dict[str, Tensor]:
        """Starting weights by their recorded names."""
        return {
            name.removeprefix("init."): torch.from_numpy(array.astype(np.float32))
            for name, array in self.arrays.items()
            if name.startswith("init.")
        }

    def batches(self) -> list[dict[str, Tensor]]:
        """The fixed batches; labels of unlabelled rows are already hidden."""
        count = sum(name.endswith(".images_x16") for name in self.arrays)
        result = []
        for i in range(count):
            labelled = torch.from_numpy(self.arrays[f"batch{i}.labelled"])
            labels = torch.from_numpy(self.arrays[f"batch{i}.labels"].astype(np.int64))
            images = torch.from_numpy(self.arrays[f"batch{i}.images_x16"].astype(np.float32)) / 16
            result.append({"images": images, "labelled": labelled, "target": torch.where(labelled, labels, -1)})
        return result


def build(
    method_class: type[Method], recording: Recording, recipe: str, variant: str
) -> tuple[Method, SplitViT, TrainConfig]:
    """The method at the recording's starting point, with its backbone."""
    import_timm()
    from timm.models.vision_transformer import VisionTransformer

    settings = recording.settings
    weights = recording.initial()
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    train = TrainConfig(
        epochs=settings["epochs"],
        batch_size=settings["batch"],
        lr=settings["lr"],
        momentum=settings["momentum"],
        weight_decay=settings["weight_decay"],
        lr_floor=settings["eta_min"] / settings["lr"],
    )
    config = _method_config(method_class, recording, recipe, variant, shapes)
    with fenced_rng(0, "replay"):
        vit = VisionTransformer(**settings["vit"])
        backbone_names = {f"backbone.{name}" for name in vit.state_dict()}
        load_into(vit, {n.removeprefix("backbone."): weights[n] for n in sorted(backbone_names)}, "the recording")
        split = SplitViT(vit, settings["train_blocks_from"])
        task = Task(
            num_base=settings["base_classes"],
            num_classes=settings["classes"],
            backbone=split,
            train=train,
            steps_per_epoch=settings["steps_per_epoch"],
            generator=generator(0, "replay"),
        )
        method = method_class(config, task)
    state = dict(method.state_dict())
    for reference, own in method.reference_names().items():
        if reference not in weights or own not in state:
            raise PluginError(f"The method maps '{reference}' to '{own}', but one of them does not exist.")
        state[own].copy_(weights[reference].reshape(state[own].shape))
    return method, split, train


def _method_config(
    method_class: type[Method],
    recording: Recording,
    recipe: str,
    variant: str,
    shapes: Mapping[str, tuple[int, ...]],
) -> Any:
    own = {f"method.{k}": v for k, v in method_class.reference_config(recording.settings, shapes).items()}
    if any(f.name == "param_groups" for f in fields(method_class.Config)):
        own["method.param_groups"] = variant
    presets = [
        Layer(layer.source, {k: v for k, v in layer.values.items() if k.startswith("method.")})
        for layer in preset_layers(method_class, recipe, "", None)
    ]
    resolved = resolve(
        method="",
        dataset="",
        recipe=recipe,
        seed=0,
        method_config=method_class.Config,
        layers=[*presets, Layer("the recording", own)],
    )
    return resolved.config.method_config


def replay(method_class: type[Method], path: Path, recipe: str, variant: str) -> list[Deviation]:
    """Train through the recorded steps; the largest deviation of each loss term and each final tensor."""
    recording = Recording(path)
    if variant not in recording.variants():
        raise unknown("recorded parameter-group variant", variant, recording.variants())
    try:
        method, split, _ = build(method_class, recording, recipe, variant)
    except KeyError as fault:
        raise DataError(f"The recording {path} lacks {fault}, which this method's replay needs.") from fault
    stage = method.stages()[0]
    optims = method.optimizers(stage)
    expected = recording.arrays[f"{variant}.losses"]
    batches = recording.batches()
    seen = np.zeros_like(expected)
    steps = recording.settings["steps_per_epoch"]
    for number in range(len(expected)):
        t = Progress("main", number // steps, stage.epochs, number % steps, steps)
        data = batches[number % len(batches)]
        batch = Batch(split.trunk(data["images"]), data["target"], data["labelled"], torch.arange(len(data["target"])))
        for optim in optims.values():
            for group in optim.optimizer.param_groups:
                group.setdefault("initial_lr", group["lr"])
                group["lr"] = optim.schedule(group["initial_lr"], t)
        losses = method(batch, t)
        total = losses.total()
        for optim in optims.values():
            optim.optimizer.zero_grad()
        total.backward()
        for optim in optims.values():
            optim.optimizer.step()
        values = {"total": total, **{name: term.value for name, term in losses.items()}}
        missing = [name for name in recording.loss_names if name not in values]
        if missing:
            raise PluginError(f"The method has no loss term '{missing[0]}'; it has {', '.join(losses)}.")
        seen[number] = [float(values[name].detach()) for name in recording.loss_names]
    return _deviations(recording, variant, seen, expected, method)


def _deviations(recording: Recording, variant: str, seen: Any, expected: Any, method: Method) -> list[Deviation]:
    gap = np.abs(seen - expected)
    gap[~np.isfinite(gap)] = np.inf
    found = [
        Deviation(name, float(gap[:, column].max()), int(gap[:, column].argmax()))
        for column, name in enumerate(recording.loss_names)
    ]
    state = method.state_dict()
    for reference, own in method.reference_names().items():
        final = recording.arrays.get(f"{variant}.final.{reference}")
        if final is not None:
            difference = np.abs(state[own].reshape(final.shape).numpy() - final)
            largest = float(difference.max()) if np.isfinite(difference).all() else float("inf")
            found.append(Deviation(f"final {reference}", largest))
    return found
