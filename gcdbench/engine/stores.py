"""The stores of a run: found or made before training, from what its config asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gcdbench.data.images import DirectImages, Images
from gcdbench.data.views import random_plan
from gcdbench.engine.seeding import generator
from gcdbench.engine.tokens import CHUNK
from gcdbench.store.folder import ShortOfDisk, StoreFolder, cache_root
from gcdbench.store.images import PackedImages, image_facts, image_store, pack
from gcdbench.store.tokens import TokenStore, write_tokens

if TYPE_CHECKING:
    from gcdbench.contracts import Dataset
    from gcdbench.engine.reporter import Reporter
    from gcdbench.engine.workspace import Workspace


@dataclass(frozen=True)
class Shelf:
    """Where stores are, and whether images are packed."""

    root: Path
    packs: bool = True

    @staticmethod
    def at(given: Path | None = None, packs: bool = True) -> Shelf:
        """The shelf in a given folder or the default one."""
        return Shelf(cache_root(given), packs)


def open_images(shelf: Shelf, dataset: Dataset, part: str, resize: int) -> Images:
    """The packed images if they are there; otherwise images that are decoded whenever they are asked for."""
    direct = DirectImages(dataset, part, resize)
    if direct.small or not shelf.packs:
        return direct
    store = image_store(shelf.root, dataset, part, resize)
    return PackedImages(store) if store.description() is not None else direct


def make_stores(space: Workspace, reporter: Reporter) -> None:
    """Pack images and write token stores that the run wants and that are not there yet."""
    source, shelf, config = space.source, space.shelf, space.config.store
    for part in source.images:
        _pack(space, part, reporter)
    if config.eval_tokens != "auto":
        for part in source.images:
            if part not in source.stored:
                source.stored[part] = _eval_tokens(space, shelf, part, reporter)
    if config.train_views and source.stored_views is None:
        source.stored_views = _train_tokens(space, shelf, reporter)
        source.views_per_row = config.train_views


def _pack(space: Workspace, part: str, reporter: Reporter) -> None:
    images, resize = space.source.images[part], space.config.views.resize
    if not isinstance(images, DirectImages) or images.small or not space.shelf.packs:
        return
    dataset = space.data.dataset
    store = image_store(space.shelf.root, dataset, part, resize)
    try:
        pack(store, dataset, part, resize, reporter.announce, _ticker(reporter, f"packing {part} images"))
    except ShortOfDisk as fault:
        reporter.warn(f"{fault} Images are decoded in every epoch instead.")
        return
    space.source.images[part] = PackedImages(store)


def _facts(space: Workspace, part: str, dtype: str) -> dict[str, Any]:
    """Everything that decides the tokens of a part."""
    views, info = space.config.views, space.backbone_info
    return {
        "images": image_facts(space.data.dataset, part, views.resize),
        "crop": views.crop,
        "mean": list(views.mean),
        "std": list(views.std),
        "architecture": info.architecture,
        "weights": info.weights_hash,
        "blocks": space.backbone.start,
        "precision": space.compute.precision,
        "compiled": space.config.train.compile,
        "device": space.compute.device.type,
        "torch": torch.__version__,
        "dtype": dtype,
    }


def _eval_tokens(space: Workspace, shelf: Shelf, part: str, reporter: Reporter) -> TokenStore:
    source, dtype = space.source, space.config.store.eval_tokens
    total = len(source.images[part])
    store = StoreFolder(shelf.root, "tokens", {**_facts(space, part, dtype), "views": "centre", "chunk": CHUNK})
    if store.description() is None:
        what = f"{dtype} tokens of {total:,} images of {space.data.dataset.title} ({part})"
        parts = (tokens for _, tokens in source.chunks(part, range(-(-total // CHUNK))))
        tick = _ticker(reporter, f"computing {part} tokens")
        write_tokens(store, what, total, source.token_shape(), dtype, parts, reporter.announce, tick)
    return TokenStore(store)


def _train_tokens(space: Workspace, shelf: Shelf, reporter: Reporter) -> TokenStore:
    """Random views of every training row; the same ones for every run, so that all seeds share one store."""
    source, config = space.source, space.config
    count, dtype = config.store.train_views, config.store.train_tokens
    total = len(source.images["train"])
    facts = {**_facts(space, "train", dtype), "views": count, "flip": config.views.flip, "chunk": CHUNK}
    store = StoreFolder(shelf.root, "tokens", facts)

    def parts() -> Iterator[Tensor]:
        random = generator(0, "stored views")
        plans = (random_plan(c, config.views, random, views=count) for c in torch.arange(total).split(CHUNK))
        for plan, tokens in source.stream("train", plans):
            # View-major to row-major: all views of a row lie side by side.
            yield tokens.view(count, len(plan.rows), *tokens.shape[1:]).transpose(0, 1).flatten(0, 1)

    if store.description() is None:
        what = f"{dtype} tokens of {count} training views of {total:,} images of {space.data.dataset.title}"
        shape, tick = source.token_shape(), _ticker(reporter, "computing tokens of training views")
        write_tokens(store, what, total * count, shape, dtype, parts(), reporter.announce, tick)
    return TokenStore(store)


def _ticker(reporter: Reporter, name: str) -> Callable[[int, int], None]:
    return lambda done, total: reporter.working(name, done, total)
