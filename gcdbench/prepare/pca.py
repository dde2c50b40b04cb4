"""The PCA of a run whose backbone wants one: fitted on training images without their labels, once, and kept.

It is fitted in double precision and kept in the cache and with every run: another number of threads may round
differently, and a run that continues must see the tokens it began with.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcdbench.backbone.feature_map import SplitFeatureMap
from gcdbench.backbone.load import BackboneInfo
from gcdbench.backbone.projection import Projection, fit_projection, read_projection
from gcdbench.config.resolve import RunConfig
from gcdbench.data.store.store_folder import CannotStore, StoreFolder
from gcdbench.errors import DataError
from gcdbench.prepare.opened_data import OpenedData
from gcdbench.prepare.token_identity import TokenIdentity
from gcdbench.prepare.token_source import ReadyBackbone
from gcdbench.system.seeding import generator

FILE = "projection.safetensors"
BATCH = 128
"""Images of a trunk pass while fitting."""

Tick = Callable[[str, int, int], None]


def fitted_rows(rows: int, wanted: int) -> np.ndarray:
    """The training rows a PCA is fitted on: all, or as many as wanted, drawn once; labels are not looked at."""
    if wanted >= rows:
        return np.arange(rows, dtype=np.int64)
    return np.sort(torch.randperm(rows, generator=generator(0, "pca"))[:wanted].numpy())


def projection_of(
    config: RunConfig, data: OpenedData, ready: ReadyBackbone, store_root: Path, tick: Tick | None = None
) -> Projection:
    """The projection from its store, or a new one; ``ready`` gives the tokens before they are projected."""
    dims, rows = config.backbone.pca, fitted_rows(len(data.index), config.backbone.pca_images)
    assert dims is not None
    info, source = ready.info, ready.source
    facts = TokenIdentity.of(config, info).store_facts(data.dataset, "train") | {"dims": dims, "rows": len(rows)}
    store = StoreFolder(store_root, "projections", facts)
    found = _stored(store)
    if found is not None:
        return found
    if store.description() is not None:  # damaged
        shutil.rmtree(store.path, ignore_errors=True)

    def batches() -> Iterator[Tensor]:
        done = 0
        for tokens in source.centre("train", np.sort(data.numbers[rows]), BATCH, sparse=True):
            yield tokens
            done += len(tokens)
            if tick is not None:
                tick(f"fitting a PCA to {dims} dimensions", done, len(rows))

    def fit() -> Projection:
        fitted = fit_projection(batches(), dims)
        if data.dataset.files_hash("train") != facts["images"]["files"]:
            raise DataError(
                f"The image files of {data.dataset.title} changed while the PCA was being fitted; "
                "run the command again."
            )
        return fitted

    def fill(folder: Path) -> dict[str, Any]:
        fitted = fit()
        fitted.write(folder / FILE)
        return {"digest": fitted.digest()}

    # Under the store's lock: processes that are started together fit one PCA and use the same.
    with suppress(CannotStore):
        what = f"the PCA of {info.name} on {data.dataset.title}"
        store.build(8 * dims * source.token_shape()[1], what, fill, lambda text: None)
    return _stored(store) or fit()


def _stored(store: StoreFolder) -> Projection | None:
    """What a store holds, if it is what was written."""
    description = store.description()
    if description is None:
        return None
    try:
        found = read_projection(store.path / FILE)
    except DataError:
        return None
    return found if found.digest() == description.get("digest") else None


def with_projection(
    backbone: SplitFeatureMap, info: BackboneInfo, projection: Projection, images: int
) -> tuple[SplitFeatureMap, BackboneInfo]:
    """A backbone that projects, and what the record says of it."""
    facts = {
        "dims": projection.dims,
        "images": images,
        "variance": round(float(projection.fitted["share"]), 4),
        "hash": projection.digest(),
    }
    return backbone.projected(projection), dataclasses.replace(info, projection=facts)


def begun_with(folder: Path, info: BackboneInfo) -> Projection | None:
    """The PCA that a run has begun with, if it is another one than ``info`` describes: its store was deleted, and what
    was fitted since rounds differently."""
    path = folder / FILE
    if info.projection is None or not path.is_file():
        return None
    try:
        found = read_projection(path)
    except DataError as fault:
        raise DataError(f"{fault} The run cannot continue without it: start it again with --force.") from fault
    return None if found.digest() == info.projection["hash"] else found
