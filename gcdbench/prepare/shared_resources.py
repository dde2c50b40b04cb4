"""What the runs of one request share: opened data, loaded backbones, sources of tokens, estimates."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from gcdbench import registry
from gcdbench.backbone.feature_map import SplitFeatureMap
from gcdbench.backbone.load import BackboneInfo, load_backbone
from gcdbench.backbone.projection import Projection
from gcdbench.backbone.split import SplitBackbone
from gcdbench.config.resolve import RunConfig
from gcdbench.config.sections import BackboneConfig, DataConfig
from gcdbench.contracts import Dataset
from gcdbench.data.store.store_folder import spoken_size
from gcdbench.errors import TrainingError
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.estimate_k import Estimated, estimate_with
from gcdbench.prepare.opened_data import OpenedData, open_data
from gcdbench.prepare.pca import projection_of, with_projection
from gcdbench.prepare.token_source import PassOptions, ReadyBackbone, TokenSource
from gcdbench.prepare.token_stores import open_images
from gcdbench.system.device import Compute, free_memory
from gcdbench.system.observer import Observer
from gcdbench.system.plugin_call import memory_error, out_of_memory


class SharedResources:
    """Data, backbones, token sources and estimates, shared by the runs of one request."""

    def __init__(self, environment: RunEnvironment | None = None, observer: Observer | None = None) -> None:
        self.environment = environment or RunEnvironment()
        self.observer = observer or Observer()
        self._sources: dict[Hashable, TokenSource] = {}
        self._data: dict[tuple[type, DataConfig, bool], OpenedData] = {}
        self._backbone: dict[tuple[BackboneConfig, int, int, torch.dtype], tuple[SplitBackbone, BackboneInfo]] = {}
        self._estimates: dict[tuple[str, int, int], Estimated] = {}
        self._projected: dict[tuple[int, int, str], tuple[SplitFeatureMap, BackboneInfo]] = {}

    def data(self, dataset: type[Dataset], config: DataConfig, with_test: bool) -> OpenedData:
        """The opened dataset."""
        key = (dataset, config, with_test)
        if key not in self._data:
            here = self.environment
            cache = here.store_options.root
            self._data[key] = open_data(dataset, here.root, config, with_test, cache, self.observer.working)
        return self._data[key]

    def backbone(
        self, config: BackboneConfig, image_size: int, seed: int, dtype: torch.dtype = torch.float32
    ) -> tuple[SplitBackbone, BackboneInfo]:
        """The loaded backbone; random weights depend on the seed, others do not."""
        key = (config, image_size, seed if config.weights == "random" else 0, dtype)
        if key not in self._backbone:
            self._backbone[key] = load_backbone(config, image_size, key[2])
        return self._backbone[key]

    def source(self, config: RunConfig, data: OpenedData, backbone: SplitBackbone, compute: Compute) -> TokenSource:
        """The token source of runs that see the same images through the same trunk."""
        train, views = config.train, config.views
        key = (
            id(data.dataset),
            data.parts,
            id(backbone),
            views,
            compute,
            config.store,
            train.micro_batch,
            train.compile,
        )
        if key not in self._sources:
            here = self.environment
            images = {part: open_images(here.store_options, data.dataset, part, views.resize) for part in data.parts}
            options = PassOptions(train.micro_batch, here.workers, train.compile)
            self._sources[key] = TokenSource(backbone.trunk, images, views, compute, options, data.order)
        return self._sources[key]

    def opened(
        self, config: RunConfig, data: OpenedData, compute: Compute, own: Projection | None = None
    ) -> ReadyBackbone:
        """The backbone on its device, with its PCA if it wants one, what the record says of it, and its tokens.

        ``own`` is the PCA a run has begun with, where that is not the one found now.
        """
        backbone, info = self.backbone(config.backbone, config.views.crop, config.seed, compute.dtype)
        require_memory(config, backbone)
        _move(backbone, compute)
        source = self.source(config, data, backbone, compute)
        if config.backbone.pca is None:
            return ReadyBackbone(backbone, info, source)
        key = (id(data), id(source), "" if own is None else own.digest())
        if key not in self._projected:
            assert isinstance(backbone, SplitFeatureMap)
            if own is None:
                ready, root = ReadyBackbone(backbone, info, source), self.environment.store_options.root
                own = Projection(
                    **self.environment.ranks.from_first(
                        lambda: projection_of(config, data, ready, root, self.observer.working).fitted
                    )
                )
            images = min(len(data.index), config.backbone.pca_images)
            self._projected[key] = with_projection(backbone, info, own, images)
            _move(self._projected[key][0], compute)
        projected, facts = self._projected[key]
        return ReadyBackbone(projected, facts, self.source(config, data, projected, compute))

    def estimate(self, config: RunConfig, data: OpenedData, ready: ReadyBackbone) -> Estimated:
        """The number of classes that the config's estimator finds."""
        name = config.data.k_from
        assert name is not None
        plugin = registry.get("k-estimator", name)
        key = (plugin.name, id(data), id(ready.source))
        if key not in self._estimates:
            self._estimates[key] = estimate_with(plugin, config, data, ready, self.environment.store_options.root)
        return self._estimates[key]


def _move(backbone: SplitBackbone, compute: Compute) -> None:
    try:
        backbone.to(compute.device, compute.dtype)
    except RuntimeError as fault:
        if not out_of_memory(fault):
            raise
        raise memory_error("loading the backbone") from fault


def require_memory(config: RunConfig, backbone: SplitBackbone) -> None:
    """Refuse a batch that cannot fit, before the system ends the process for it without an error message."""
    free, side = free_memory(), config.views.crop
    views = config.train.batch_size * config.views.count
    needed = views * (3 * side * side + 4 * backbone.num_tokens * backbone.embed_dim)
    needed += min(views, config.train.micro_batch) * 12 * side * side
    if free is not None and needed > free:
        raise TrainingError(
            f"A batch of {views} views of {side} x {side} pixels takes {spoken_size(needed)} at least, but only "
            f"{spoken_size(free)} of memory are free. Lower views.crop or train.batch_size."
        )
