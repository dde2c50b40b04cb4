"""What the runs of one request share: opened data, loaded backbones, sources of tokens, estimates."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import torch

from gcdbench import registry
from gcdbench.backbone.feature_map import SplitFeatureMap
from gcdbench.backbone.load import BackboneInfo, load_backbone
from gcdbench.backbone.projection import Projection
from gcdbench.backbone.split import SplitBackbone
from gcdbench.config.resolve import BackboneConfig, DataConfig, RunConfig, StoreConfig, ViewConfig
from gcdbench.contracts import Dataset
from gcdbench.data.store.store_folder import spoken_size
from gcdbench.errors import TrainingError
from gcdbench.prepare.estimate_k import Estimated, estimate_with
from gcdbench.prepare.opened_data import DataSide, Tick, open_data
from gcdbench.prepare.pca import projection_of, with_projection
from gcdbench.prepare.token_source import TokenSource
from gcdbench.prepare.token_stores import Shelf, open_images
from gcdbench.system.device import Compute, free_memory
from gcdbench.system.parallel.communicator import ALONE, Ranks
from gcdbench.system.plugin_call import memory_error, out_of_memory


class Cache:
    """Data, backbones and token sources shared by the runs of one request."""

    def __init__(self) -> None:
        self._sources: dict[Hashable, TokenSource] = {}
        self._data: dict[tuple[type, Path, DataConfig, bool], DataSide] = {}
        self._backbone: dict[tuple[BackboneConfig, int, int, torch.dtype], tuple[SplitBackbone, BackboneInfo]] = {}
        self._estimates: dict[tuple[str, int, int], Estimated] = {}
        self._projected: dict[tuple[int, int, str], tuple[SplitFeatureMap, BackboneInfo]] = {}

    def data(
        self,
        dataset: type[Dataset],
        root: Path,
        config: DataConfig,
        with_test: bool,
        shelf: Shelf | None = None,
        tick: Tick | None = None,
    ) -> DataSide:
        """The opened dataset."""
        key = (dataset, root, config, with_test)
        if key not in self._data:
            self._data[key] = open_data(dataset, root, config, with_test, None if shelf is None else shelf.root, tick)
        return self._data[key]

    def backbone(
        self, config: BackboneConfig, image_size: int, seed: int, dtype: torch.dtype = torch.float32
    ) -> tuple[SplitBackbone, BackboneInfo]:
        """The loaded backbone; random weights depend on the seed, others do not."""
        key = (config, image_size, seed if config.weights == "random" else 0, dtype)
        if key not in self._backbone:
            self._backbone[key] = load_backbone(config, image_size, key[2])
        return self._backbone[key]

    def source(
        self,
        data: DataSide,
        backbone: SplitBackbone,
        views: ViewConfig,
        compute: Compute,
        stores: StoreConfig,
        shelf: Shelf,
        micro_batch: int,
        compiled: bool,
        workers: int | None,
    ) -> TokenSource:
        """The token source of runs that see the same images through the same trunk."""
        parts = data.parts
        key = (id(data.dataset), parts, id(backbone), views, compute, stores, shelf, micro_batch, compiled, workers)
        if key not in self._sources:
            images = {part: open_images(shelf, data.dataset, part, views.resize) for part in parts}
            self._sources[key] = TokenSource(
                backbone.trunk, images, views, compute, micro_batch, workers, compiled, data.order
            )
        return self._sources[key]

    def opened(
        self,
        config: RunConfig,
        data: DataSide,
        compute: Compute,
        shelf: Shelf,
        workers: int | None = None,
        ranks: Ranks = ALONE,
        tick: Tick | None = None,
        own: Projection | None = None,
    ) -> tuple[SplitBackbone, BackboneInfo, TokenSource]:
        """The backbone on its device, with its PCA if it wants one, what the record says of it, and its tokens.

        ``own`` is the PCA a run has begun with, where that is not the one found now.
        """

        def source_of(some: SplitBackbone) -> TokenSource:
            train, stores = config.train, config.store
            return self.source(
                data, some, config.views, compute, stores, shelf, train.micro_batch, train.compile, workers
            )

        backbone, info = self.backbone(config.backbone, config.views.crop, config.seed, compute.dtype)
        require_memory(config, backbone)
        _move(backbone, compute)
        source = source_of(backbone)
        if config.backbone.pca is None:
            return backbone, info, source
        key = (id(data), id(source), "" if own is None else own.digest())
        if key not in self._projected:
            assert isinstance(backbone, SplitFeatureMap)
            if own is None:
                fitted = ranks.from_first(lambda: projection_of(config, data, info, source, shelf.root, tick).fitted)
                own = Projection(**fitted)
            images = min(len(data.index), config.backbone.pca_images)
            self._projected[key] = with_projection(backbone, info, own, images)
            _move(self._projected[key][0], compute)
        projected, facts = self._projected[key]
        return projected, facts, source_of(projected)

    def estimate(
        self,
        config: RunConfig,
        data: DataSide,
        backbone: SplitBackbone,
        info: BackboneInfo,
        source: TokenSource,
        shelf: Shelf,
    ) -> Estimated:
        """The number of classes that the config's estimator finds."""
        name = config.data.k_from
        assert name is not None
        plugin = registry.get("k-estimator", name)
        key = (plugin.name, id(data), id(source))
        if key not in self._estimates:
            self._estimates[key] = estimate_with(plugin, config, data, backbone, info, source, shelf.root)
        return self._estimates[key]


def _move(backbone: SplitBackbone, compute: Compute) -> None:
    try:
        backbone.to(compute.device, compute.dtype)
    except RuntimeError as fault:
        if not out_of_memory(fault):
            raise
        raise memory_error("loading the backbone") from fault


def require_memory(config: RunConfig, backbone: SplitBackbone) -> None:
    """A batch that cannot fit is told before the system ends the process for it, without a word."""
    free, side = free_memory(), config.views.crop
    views = config.train.batch_size * config.views.count
    needed = views * (3 * side * side + 4 * backbone.num_tokens * backbone.embed_dim)
    needed += min(views, config.train.micro_batch) * 12 * side * side
    if free is not None and needed > free:
        raise TrainingError(
            f"A batch of {views} views of {side} x {side} pixels takes {spoken_size(needed)} at least, but only "
            f"{spoken_size(free)} of memory are free. Lower views.crop or train.batch_size."
        )
