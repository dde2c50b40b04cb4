"""The stores of a run: found or made before training, from what its config asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gcdbench.data.images import DirectImages, Images
from gcdbench.data.store.packed_images import PackedImages, estimate, image_store, pack
from gcdbench.data.store.store_folder import CannotStore, StoreFolder, spoken_size
from gcdbench.data.store.token_store import TokenKind, TokenStore, token_bytes, write_tokens
from gcdbench.data.views import random_plan
from gcdbench.prepare import token_source
from gcdbench.prepare.environment import StoreOptions
from gcdbench.prepare.token_identity import TokenIdentity
from gcdbench.prepare.token_source import CHUNK
from gcdbench.system.files import free_bytes
from gcdbench.system.seeding import generator

if TYPE_CHECKING:
    from gcdbench.contracts import Dataset
    from gcdbench.prepare.run_context import RunContext
    from gcdbench.system.observer import Observer


PLENTY = 4
"""How many times the size of a store that nobody asked for must be free."""


def open_images(store_options: StoreOptions, dataset: Dataset, part: str, resize: int) -> Images:
    """The packed images if they are there; otherwise images that are decoded whenever they are asked for."""
    direct = DirectImages(dataset, part, resize)
    if direct.small or not store_options.packs:
        return direct
    store = image_store(store_options.root, dataset, part, resize)
    return PackedImages(store) if store.description() is not None else direct


def make_stores(ctx: RunContext, observer: Observer) -> None:
    """Pack images and write token stores that the run wants and that are not there yet."""
    source, config = ctx.source, ctx.config.store
    for part in source.images:
        _pack(ctx, part, observer)
    for part in source.images:
        if part not in source.stored and eval_dtype(ctx, part) != "auto":
            try:
                source.stored[part] = _eval_tokens(ctx, part, observer)
            except CannotStore as fault:
                if config.eval_tokens != "auto":
                    raise
                observer.warn(f"{fault} Tokens are computed at every evaluation instead.")
    if config.train_views and source.stored_views is None:
        source.stored_views = _train_tokens(ctx, observer)
        source.views_per_row = config.train_views


def eval_dtype(ctx: RunContext, part: str) -> str:
    """How tokens of evaluation views are stored. With `auto` they are (exactly) where several evaluations would compute
    them again, because they do not fit into memory, and where the disk has plenty of room."""
    asked, images = ctx.config.store.eval_tokens, ctx.source.images[part]
    often = bool(ctx.config.eval.every) or ctx.rule.metric is not None
    exact = ctx.compute.dtype == torch.float32 and ctx.config.backbone.train_from
    if asked != "auto" or not (often and exact and ctx.store_options.packs):
        return asked
    size = token_bytes(len(images), ctx.source.token_shape(), "fp32")
    return "fp32" if token_source.KEEP_BYTES < size <= free_bytes(ctx.store_options.root) // PLENTY else "auto"


def planned_stores(ctx: RunContext) -> dict[str, str]:
    """What each store of the run takes or would take, for a person."""
    found = {}
    source, config, dataset = ctx.source, ctx.config.store, ctx.data.dataset
    for part, images in source.images.items():
        if isinstance(images, PackedImages):
            found[f"{part} images"] = f"stored in {images.path}"
        elif isinstance(images, DirectImages) and not images.small and ctx.store_options.packs:
            size = spoken_size(estimate(dataset, part, ctx.config.views.resize))
            found[f"{part} images"] = f"would take {size} in {ctx.store_options.root}"
    wanted: dict[str, tuple[StoreFolder, int, str]] = {}
    for part, images in source.images.items():
        if (how := eval_dtype(ctx, part)) != "auto":
            wanted[f"{part} tokens"] = (_eval_store(ctx, part), len(images), how)
    if config.train_views:
        rows = len(source.images["train"]) * config.train_views
        wanted["training views"] = (_train_store(ctx), rows, config.train_tokens)
    for name, (store, rows, dtype) in wanted.items():
        size = spoken_size(token_bytes(rows, source.token_shape(), dtype))
        there = store.description() is not None
        found[name] = f"{dtype}, stored in {store.path}" if there else f"{dtype}, would take {size} in {store.root}"
    return found


def missing_views(ctx: RunContext) -> int:
    """Views that the run would encode once, because its stores want them and do not have them."""
    images, config = ctx.source.images, ctx.config.store
    count = 0
    if config.train_views and _train_store(ctx).description() is None:
        count += len(images["train"]) * config.train_views
    wanted = [part for part in images if eval_dtype(ctx, part) != "auto"]
    return count + sum(len(images[part]) for part in wanted if _eval_store(ctx, part).description() is None)


def missing_bytes(ctx: RunContext) -> int:
    """What the stores will take that the run wants and that are not there yet."""
    source, config, count = ctx.source, ctx.config.store, 0
    for part, images in source.images.items():
        if isinstance(images, DirectImages) and not images.small and ctx.store_options.packs:
            count += estimate(ctx.data.dataset, part, ctx.config.views.resize)
        if (dtype := eval_dtype(ctx, part)) != "auto" and _eval_store(ctx, part).description() is None:
            count += token_bytes(len(images), source.token_shape(), dtype)
    if config.train_views and _train_store(ctx).description() is None:
        rows = len(source.images["train"]) * config.train_views
        count += token_bytes(rows, source.token_shape(), config.train_tokens)
    return count


def _pack(ctx: RunContext, part: str, observer: Observer) -> None:
    images, resize = ctx.source.images[part], ctx.config.views.resize
    if not isinstance(images, DirectImages) or images.small or not ctx.store_options.packs:
        return
    dataset = ctx.data.dataset
    store = image_store(ctx.store_options.root, dataset, part, resize)
    try:
        pack(store, dataset, part, resize, observer.announce, _ticker(observer, f"packing {part} images"))
    except CannotStore as fault:
        observer.warn(f"{fault} Images are decoded in every epoch instead.")
        return
    ctx.source.use_packed(part, PackedImages(store))


def _facts(ctx: RunContext, part: str, dtype: str) -> dict[str, Any]:
    """Everything that decides the tokens of a part, as they are stored."""
    return {
        **TokenIdentity.of(ctx.config, ctx.backbone_info).store_facts(ctx.data.dataset, part),
        "blocks": ctx.backbone.start,
        "compiled": ctx.config.train.compile,
        "pass": min(CHUNK, ctx.config.train.micro_batch),
        "device": ctx.compute.describe(),
        "torch": torch.__version__,
        "dtype": dtype,
        "rows": "shuffled",  # by `data.splits.row_order`
    }


def _eval_store(ctx: RunContext, part: str) -> StoreFolder:
    facts = {**_facts(ctx, part, eval_dtype(ctx, part)), "views": "centre", "chunk": CHUNK}
    return StoreFolder(ctx.store_options.root, "tokens", facts)


def _train_store(ctx: RunContext) -> StoreFolder:
    config = ctx.config.store
    facts = {"views": config.train_views, "flip": ctx.config.views.flip, "chunk": CHUNK}
    return StoreFolder(ctx.store_options.root, "tokens", {**_facts(ctx, "train", config.train_tokens), **facts})


def _eval_tokens(ctx: RunContext, part: str, observer: Observer) -> TokenStore:
    source, dtype, store = ctx.source, eval_dtype(ctx, part), _eval_store(ctx, part)
    total = len(source.images[part])
    if store.description() is None:
        what = f"{dtype} tokens of {total:,} images of {ctx.data.dataset.title} ({part})"
        tick = _ticker(observer, f"computing {part} tokens")

        def parts(first: int) -> Iterator[Tensor]:
            yield from (tokens for _, tokens in source.chunks(part, range(first // CHUNK, -(-total // CHUNK))))
            ctx.check_files()  # a store must not outlive images that have changed meanwhile

        write_tokens(store, what, TokenKind(total, source.token_shape(), dtype), parts, observer.announce, tick)
    return TokenStore(store)


def _train_tokens(ctx: RunContext, observer: Observer) -> TokenStore:
    """Random views of every training row; the same ones for every run, so that all seeds share one store."""
    source, config, store = ctx.source, ctx.config, _train_store(ctx)
    count, dtype = config.store.train_views, config.store.train_tokens
    total = len(source.images["train"])

    def parts(first: int) -> Iterator[Tensor]:
        random = generator(0, "stored views")
        plans = (random_plan(c, config.views, random, views=count) for c in torch.arange(total).split(CHUNK))
        # The plans of what is there already are drawn all the same: the random numbers after them must not change.
        for plan, tokens in source.stream("train", islice(plans, first // (count * CHUNK), None)):
            # View-major to row-major: all views of a row lie side by side.
            yield tokens.view(count, len(plan.rows), *tokens.shape[1:]).transpose(0, 1).flatten(0, 1)
        ctx.check_files()

    if store.description() is None:
        what = f"{dtype} tokens of {count} training views of {total:,} images of {ctx.data.dataset.title}"
        shape, tick = source.token_shape(), _ticker(observer, "computing tokens of training views")
        write_tokens(store, what, TokenKind(total * count, shape, dtype), parts, observer.announce, tick)
    return TokenStore(store)


def _ticker(observer: Observer, name: str) -> Callable[[int, int], None]:
    return lambda done, total: observer.working(name, done, total)
