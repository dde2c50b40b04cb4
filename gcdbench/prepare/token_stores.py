"""The stores of a run: found or made before training, from what its config asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gcdbench.data.images import DirectImages, Images
from gcdbench.data.store.packed_images import PackedImages, estimate, image_facts, image_store, pack
from gcdbench.data.store.store_folder import CannotStore, StoreFolder, cache_root, spoken_size
from gcdbench.data.store.token_store import TokenStore, token_bytes, write_tokens
from gcdbench.data.views import random_plan
from gcdbench.prepare.token_source import CHUNK
from gcdbench.system.seeding import generator

if TYPE_CHECKING:
    from gcdbench.contracts import Dataset
    from gcdbench.prepare.run_context import Workspace
    from gcdbench.system.observer import Reporter


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
    source, config = space.source, space.config.store
    for part in source.images:
        _pack(space, part, reporter)
    if config.eval_tokens != "auto":
        for part in source.images:
            if part not in source.stored:
                source.stored[part] = _eval_tokens(space, part, reporter)
    if config.train_views and source.stored_views is None:
        source.stored_views = _train_tokens(space, reporter)
        source.views_per_row = config.train_views


def planned_stores(space: Workspace) -> dict[str, str]:
    """What each store of the run takes or would take, for a person."""
    found = {}
    source, config, dataset = space.source, space.config.store, space.data.dataset
    for part, images in source.images.items():
        if isinstance(images, PackedImages):
            found[f"{part} images"] = f"stored in {images.path}"
        elif isinstance(images, DirectImages) and not images.small and space.shelf.packs:
            size = spoken_size(estimate(dataset, part, space.config.views.resize))
            found[f"{part} images"] = f"would take {size} in {space.shelf.root}"
    wanted = {}
    if config.eval_tokens != "auto":
        wanted = {f"{p} tokens": (_eval_store(space, p), len(i), config.eval_tokens) for p, i in source.images.items()}
    if config.train_views:
        rows = len(source.images["train"]) * config.train_views
        wanted["training views"] = (_train_store(space), rows, config.train_tokens)
    for name, (store, rows, dtype) in wanted.items():
        size = spoken_size(token_bytes(rows, source.token_shape(), dtype))
        there = store.description() is not None
        found[name] = f"{dtype}, stored in {store.path}" if there else f"{dtype}, would take {size} in {store.root}"
    return found


def _pack(space: Workspace, part: str, reporter: Reporter) -> None:
    images, resize = space.source.images[part], space.config.views.resize
    if not isinstance(images, DirectImages) or images.small or not space.shelf.packs:
        return
    dataset = space.data.dataset
    store = image_store(space.shelf.root, dataset, part, resize)
    try:
        pack(store, dataset, part, resize, reporter.announce, _ticker(reporter, f"packing {part} images"))
    except CannotStore as fault:
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
        "pass": min(CHUNK, space.config.train.micro_batch),
        "device": space.compute.describe(),
        "torch": torch.__version__,
        "timm": version("timm"),
        "dtype": dtype,
        "rows": "shuffled",  # by `data.splits.row_order`
        **({} if info.projection is None else {"projection": info.projection["hash"]}),
    }


def _eval_store(space: Workspace, part: str) -> StoreFolder:
    facts = {**_facts(space, part, space.config.store.eval_tokens), "views": "centre", "chunk": CHUNK}
    return StoreFolder(space.shelf.root, "tokens", facts)


def _train_store(space: Workspace) -> StoreFolder:
    config = space.config.store
    facts = {"views": config.train_views, "flip": space.config.views.flip, "chunk": CHUNK}
    return StoreFolder(space.shelf.root, "tokens", {**_facts(space, "train", config.train_tokens), **facts})


def _eval_tokens(space: Workspace, part: str, reporter: Reporter) -> TokenStore:
    source, dtype, store = space.source, space.config.store.eval_tokens, _eval_store(space, part)
    total = len(source.images[part])
    if store.description() is None:
        what = f"{dtype} tokens of {total:,} images of {space.data.dataset.title} ({part})"
        tick = _ticker(reporter, f"computing {part} tokens")

        def parts(first: int) -> Iterator[Tensor]:
            yield from (tokens for _, tokens in source.chunks(part, range(first // CHUNK, -(-total // CHUNK))))
            space.data.state.check(space)  # a store must not outlive images that have changed meanwhile

        write_tokens(store, what, total, source.token_shape(), dtype, parts, reporter.announce, tick)
    return TokenStore(store)


def _train_tokens(space: Workspace, reporter: Reporter) -> TokenStore:
    """Random views of every training row; the same ones for every run, so that all seeds share one store."""
    source, config, store = space.source, space.config, _train_store(space)
    count, dtype = config.store.train_views, config.store.train_tokens
    total = len(source.images["train"])

    def parts(first: int) -> Iterator[Tensor]:
        random = generator(0, "stored views")
        plans = (random_plan(c, config.views, random, views=count) for c in torch.arange(total).split(CHUNK))
        # The plans of what is there already are drawn all the same: the random numbers after them must not change.
        for plan, tokens in source.stream("train", islice(plans, first // (count * CHUNK), None)):
            # View-major to row-major: all views of a row lie side by side.
            yield tokens.view(count, len(plan.rows), *tokens.shape[1:]).transpose(0, 1).flatten(0, 1)
        space.data.state.check(space)

    if store.description() is None:
        what = f"{dtype} tokens of {count} training views of {total:,} images of {space.data.dataset.title}"
        shape, tick = source.token_shape(), _ticker(reporter, "computing tokens of training views")
        write_tokens(store, what, total * count, shape, dtype, parts, reporter.announce, tick)
    return TokenStore(store)


def _ticker(reporter: Reporter, name: str) -> Callable[[int, int], None]:
    return lambda done, total: reporter.working(name, done, total)
