"""Replays a recorded reference trajectory through an installed method and measures the deviation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcdbench.backbone.tail import Tail
from gcdbench.backbone.timm_import import import_timm
from gcdbench.backbone.vit import SplitViT
from gcdbench.backbone.weights import load_into
from gcdbench.config.presets import preset_layers
from gcdbench.config.resolve import Layer, resolve
from gcdbench.config.sections import TrainConfig
from gcdbench.contracts import Batch, Losses, Method, Progress, Task
from gcdbench.errors import DataError, PluginError, unknown
from gcdbench.system.device import Compute
from gcdbench.system.seeding import fenced_rng, generator
from gcdbench.testing.recording import RecordedPool, Recording
from gcdbench.training.method_trainer import MethodTrainer

TOLERANCE = 1e-4
"""Largest deviation that float32 arithmetic explains."""


@dataclass(frozen=True)
class Deviation:
    """How far one quantity is from the recording."""

    name: str
    largest: float
    at_step: int | None = None


@dataclass(frozen=True)
class Start:
    """A method at the starting point of a recording."""

    method: Method
    backbone: SplitViT
    settings: Mapping[str, Any]
    """What the recording and the method say of it."""
    names: Mapping[str, str]
    """The method's name of each recorded tensor."""


def build(method_class: type[Method], recording: Recording, recipe: str, variant: str) -> Start:
    """The method at the recording's starting point, with its backbone."""
    import_timm()
    from timm.models.vision_transformer import VisionTransformer

    weights = recording.initial()
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    settings = {**recording.settings, "variant": variant}
    settings |= method_class.reference_facts(settings, shapes)
    train = TrainConfig(
        epochs=settings["epochs"],
        batch_size=settings["batch"],
        lr=settings["lr"],
        momentum=settings["momentum"],
        weight_decay=settings["weight_decay"],
        # A recording that names no lowest rate was made at one rate.
        lr_floor=settings.get("eta_min", settings["lr"]) / settings["lr"],
    )
    config = _method_config(method_class, settings, recipe, shapes)
    with fenced_rng(0, "replay"):
        vit = VisionTransformer(**settings["vit"])
        backbone_names = {f"backbone.{name}" for name in vit.state_dict()}
        load_into(vit, {n.removeprefix("backbone."): weights[n] for n in sorted(backbone_names)}, "the recording")
        split = SplitViT(vit, settings.get("train_blocks_from", -1))
        task = Task(
            num_base=settings["base_classes"],
            num_classes=settings["classes"],
            backbone=split,
            train=train,
            steps_per_epoch=settings["steps_per_epoch"],
            generator=generator(0, "replay"),
        )
        method = method_class(config, task)
    own_names = method.reference_names()
    state = dict(method.state_dict())
    for reference, own in own_names.items():
        if reference not in weights or own not in state:
            raise PluginError(f"The method maps '{reference}' to '{own}', but one of them does not exist.")
        recorded = method.reference_tensor(reference, weights[reference])
        if recorded.numel() != state[own].numel():
            raise DataError(
                f"The recorded '{reference}' has the shape {shapes[reference]}, but the method's '{own}' has "
                f"{tuple(state[own].shape)}."
            )
        state[own].copy_(recorded.reshape(state[own].shape))
    return Start(method, split, settings, {**_tail_names(method, split.start), **own_names})


def _tail_names(method: Method, start: int) -> dict[str, str]:
    """Names of the trained blocks in a timm ViT, and in the method's (first) tail."""
    tails = [name for name, module in method.named_modules() if isinstance(module, Tail)]
    prefix = f"{tails[0]}." if tails else "."
    found = {}
    for own in (name for name in method.state_dict() if name.startswith(prefix)):
        kind, number, *rest = own.removeprefix(prefix).split(".")
        path = ["blocks", str(start + int(number)), *rest] if kind == "blocks" else [kind, number, *rest]
        found[".".join(["backbone", *path])] = own
    return found


def _method_config(
    method_class: type[Method], settings: Mapping[str, Any], recipe: str, shapes: Mapping[str, tuple[int, ...]]
) -> Any:
    own = {f"method.{k}": v for k, v in method_class.reference_config(settings, shapes).items()}
    if any(f.name == "param_groups" for f in fields(method_class.Config)):
        own["method.param_groups"] = settings["variant"]
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
    """Train through the recorded steps; the largest deviation of each loss term and each recorded tensor."""
    recording = Recording(path)
    if variant not in recording.variants():
        raise unknown("recorded parameter-group variant", variant, recording.variants())
    try:
        start = build(method_class, recording, recipe, variant)
        names = [str(name) for name in start.settings["loss_names"]]
    except KeyError as fault:
        raise DataError(f"The recording {path} lacks {fault}, which this method's replay needs.") from fault
    expected = recording.losses(variant)
    if expected.ndim != 2 or expected.shape[1] != len(names):
        raise DataError(f"The recording {path} has losses of shape {expected.shape} for {len(names)} terms.")
    seen = np.zeros_like(expected)
    gradients: list[Deviation] = []
    for number, losses in enumerate(_steps(start, recording, len(expected))):
        values = {"total": losses.total(), **{name: term.value for name, term in losses.items()}}
        values |= _buffers(start.method)
        missing = [name for name in names if name not in values]
        if missing:
            raise PluginError(f"The method has no loss term '{missing[0]}'; it has {', '.join(losses)}.")
        seen[number] = [float(values[name].detach()) for name in names]
        if number == 0:
            graded = {name: p.grad for name, p in start.method.named_parameters() if p.grad is not None}
            gradients = list(_compared(recording, f"{variant}.grad0.", start, graded, "gradient"))
    gap = np.abs(seen - expected)
    gap[~np.isfinite(gap)] = np.inf
    terms = [
        Deviation(name, float(gap[:, column].max()), int(gap[:, column].argmax())) for column, name in enumerate(names)
    ]
    final = _compared(recording, f"{variant}.final.", start, start.method.state_dict(), "final")
    return [*terms, *gradients, *final]


def _steps(start: Start, recording: Recording, count: int) -> Iterator[Losses]:
    """The losses of each step, by the training step that runs have, in the recorded stage, or the first with epochs."""
    method = start.method
    seen: list[Losses] = []
    method.register_forward_hook(lambda module, inputs, losses: seen.append(losses))
    recorded = start.settings.get("stage")
    stage = next((s for s in method.stages() if s.epochs and recorded in (None, s.name)), None)
    if stage is None:
        raise PluginError("The method trains nothing, so there is no step to compare with a recorded one.")
    trainer = MethodTrainer("the method", method, Compute(torch.device("cpu"), "fp32"))
    trainer.start_stage(stage)
    batches = recording.batches()
    tokens = [start.backbone.trunk(data["images"]) for data in batches]
    pool = RecordedPool(recording, start.backbone.trunk)
    steps, ends = start.settings["steps_per_epoch"], np.cumsum([len(data["target"]) for data in batches]).tolist()
    for number in range(count):
        place = number % steps % len(batches)
        random = generator(0, "replay", number // steps)
        t = Progress(stage.name, number // steps, stage.epochs, number % steps, steps, random)
        if t.step == 0:
            trainer.start_epoch(t)
            method.eval()
            with torch.no_grad():
                method.on_epoch_start(pool, t)
            method.train()
        data = batches[place]
        index = torch.arange(ends[place] - len(data["target"]), ends[place])
        trainer.step(Batch(tokens[place], data["target"], data["labelled"], index), t)
        yield seen.pop()


def _buffers(method: Method) -> dict[str, Tensor]:
    """Numbers that a method keeps beside its losses: each entry of its one-dimensional buffers, as `name.0`, ..."""
    found = ((name, value) for name, value in method.named_buffers() if value.ndim == 1 and "." not in name)
    return {f"{name}.{place}": number for name, value in found for place, number in enumerate(value)}


def _compared(
    recording: Recording, prefix: str, start: Start, found: Mapping[str, Tensor], what: str
) -> Iterator[Deviation]:
    """Every recorded tensor of this prefix beside the method's own; one that the method does not name is a fault."""
    for name, recorded in recording.arrays.items():
        reference, own = name.removeprefix(prefix), start.names.get(name.removeprefix(prefix))
        if not name.startswith(prefix) or reference.endswith("weight_g"):  # the frozen length of weight normalisation
            continue
        if "." not in reference:  # no weight, which has a module's path: what the recorded network answered
            continue
        expected = start.method.reference_tensor(reference, torch.from_numpy(recorded)).numpy()
        if own is None or own not in found:
            yield Deviation(f"{what} {reference} (not named by the method)", float("inf"))
        else:
            difference = np.abs(found[own].reshape(expected.shape).numpy() - expected)
            largest = float(difference.max()) if np.isfinite(difference).all() else float("inf")
            yield Deviation(f"{what} {reference}", largest)
