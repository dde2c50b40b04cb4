"""What runs will take before they begin: room on the disk and time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcdbench.data.store.store_folder import spoken_size
from gcdbench.errors import GcdbenchError
from gcdbench.prepare.run_context import RunContext, build_method
from gcdbench.prepare.token_stores import missing_bytes, missing_views
from gcdbench.records.summary import spoken_time
from gcdbench.system.files import free_bytes
from gcdbench.system.observer import Observer
from gcdbench.system.plugin_call import plugin_call
from gcdbench.training.batches import stages_of

GENERATIONS = 3
"""Checkpoints that are there at once: the last, the one before it, and the one being written."""
PER_ROW = 64
"""Bytes that predictions take for a row besides its name, and a log for everything else, generously."""
FIXED = 1 << 20


def state_bytes(state: Any) -> int:
    """Bytes of all tensors in a nested state."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, dict):
        return sum(state_bytes(value) for value in state.values())
    if isinstance(state, list | tuple):
        return sum(state_bytes(value) for value in state)
    return 0


def run_bytes(ctx: RunContext) -> int:
    """About what a run directory takes at most, from the size of the method's weights and their momentum."""
    method = build_method(ctx)
    with plugin_call(ctx.config.method, "state_dict"):
        trained = sum(p.numel() * p.element_size() for _, p in method.trained_parameters())
        checkpoint = state_bytes(method.state_dict()) + trained
    index = ctx.data.index if ctx.config.eval.rows == "unlabelled" else ctx.data.test
    names = 0 if index is None else sum(map(len, index.items))
    return GENERATIONS * checkpoint + names + PER_ROW * len(ctx.data.index) + FIXED


def require_room(sizes: Sequence[int], folder: Path) -> None:
    """Stop before training if runs of these sizes will not fit on the disk of a folder."""
    needed, free = sum(sizes), free_bytes(folder)
    if needed > free:
        raise GcdbenchError(
            f"{len(sizes)} run{'s' if len(sizes) > 1 else ''} would take {spoken_size(needed)} for checkpoints and "
            f"predictions, but the disk of {folder} has only {spoken_size(free)} free. Free some space, or choose "
            "another folder with --runs."
        )


SLOW = 2.0
"""Hours from which on a run on a processor is called slow."""
SMALL = "vit_small_patch14_reg4_dinov2.lvd142m"
"""A network that a processor can run."""
IMAGES = 4
"""Images of the pass that is timed."""
WORTH_SAYING = 60.0
"""Seconds from which on the expected time is announced."""


def image_seconds(ctx: RunContext) -> float:
    """Time of the trunk for one image, from one small pass."""
    side = ctx.config.views.crop
    images = torch.zeros(IMAGES, 3, side, side, dtype=ctx.compute.dtype, device=ctx.compute.device)
    with torch.inference_mode(), ctx.compute.autocast():
        ctx.compute.wait()
        started = time.monotonic()
        ctx.backbone.trunk.raw(images)
        ctx.compute.wait()
    return (time.monotonic() - started) / IMAGES


def trunk_seconds(ctx: RunContext, seconds: float) -> float:
    """Time of the trunk in training, and for the views that stores lack; ``seconds`` is that of one image."""
    train, fresh = ctx.config.train, not ctx.config.store.train_views
    views = train.epochs * ctx.sampler.steps * train.batch_size * ctx.config.views.count
    return seconds * (missing_views(ctx) + views * fresh)


def warn_if_slow(ctx: RunContext, seconds: float, observer: Observer) -> None:
    """Say at once that a network is too large for this processor."""
    hours, views = trunk_seconds(ctx, seconds) / 3600, ctx.config.views
    if ctx.compute.device.type == "cpu" and hours > SLOW:
        observer.warn(
            f"On this processor '{ctx.config.backbone.name}' alone takes about {hours:,.0f} hours, at {views.crop} px. "
            f"With --train-views 4 views are computed once and stored; a smaller network (--backbone {SMALL}) and "
            "smaller images (--set views.crop=112 --set views.resize=128) take a fraction."
        )


def expected(
    contexts: Sequence[RunContext], steps: Mapping[str, Mapping[str, float]], image: float, runs: int
) -> str | None:
    """What runs that train together will take, for a person; None if it is hardly worth saying.

    ``steps`` has the seconds of a step by run and stage, ``image`` those of the trunk for an image, ``runs`` the bytes
    of the run directories.
    """
    first = contexts[0]
    total = trunk_seconds(first, image)
    for ctx in contexts:
        stages = stages_of(ctx, build_method(ctx))
        total += sum(stage.epochs * ctx.sampler.steps * steps[ctx.run_id].get(stage.name, 0.0) for stage in stages)
    if total < WORTH_SAYING:
        return None
    some = f"{len(contexts)} runs" if len(contexts) > 1 else "This run"
    stored = missing_bytes(first)
    disk = f"; {spoken_size(runs + stored)} on disk" + (f", {spoken_size(stored)} of it stores" if stored else "")
    return f"{some}: about {spoken_time(total)}{disk}."
