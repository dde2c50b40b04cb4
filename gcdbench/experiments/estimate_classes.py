"""The number of classes of a dataset without a run: `gcdbench estimate-k`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gcdbench import registry
from gcdbench.backbone.catalogue import short_name
from gcdbench.config.resolve import Layer, RunConfig, resolve
from gcdbench.errors import UsageError
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.estimate_k import Estimated, estimate_with
from gcdbench.prepare.opened_data import OpenedData
from gcdbench.prepare.request import backbone_layer, dataset_layer
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.system.device import Compute, choose_device
from gcdbench.system.observer import Observer


@dataclass(frozen=True)
class _NoMethod:
    """No method, no settings."""


@dataclass(frozen=True)
class EstimateAnswer:
    """What was found, and on what."""

    found: Estimated
    config: RunConfig
    data: OpenedData

    @property
    def true_k(self) -> int | None:
        """The true number of classes, where it is known."""
        return self.data.split.num_classes if self.data.split.complete else None


@dataclass(frozen=True)
class EstimateRequest:
    """The arguments of `gcdbench estimate-k`."""

    dataset: str
    estimator: str
    backbone: str | None = None
    largest: int | None = None
    """Largest number that is considered."""
    again: bool = False
    """Ask, even if the answer is known."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> RunConfig:
        """The settings that a run would have."""
        dataset_class = registry.load("dataset", self.dataset)
        flags = {} if self.backbone is None else {"backbone.name": self.backbone}
        over = [Layer("--set", dict(self.settings)), Layer("command line", flags)]

        def build(between: list[Layer]) -> RunConfig:
            return resolve(
                method="",
                dataset=registry.canonical("dataset", self.dataset),
                recipe="",
                seed=0,
                method_config=_NoMethod,
                layers=[dataset_layer(dataset_class), *between, *over],
            ).config

        return build(backbone_layer(short_name(build([]).backbone.name), dataset_class))


def estimate_classes(
    request: EstimateRequest, environment: RunEnvironment, observer: Observer | None = None
) -> EstimateAnswer:
    """Ask an estimator about a dataset with the settings that a run would have."""
    observer, config = observer or Observer(), request.config()
    shared = SharedResources(environment, observer)
    observer.phase("preparing data and backbone")
    data = shared.data(registry.load("dataset", request.dataset), config.data, False)
    if not len(data.split.labelled):
        raise UsageError(f"'{config.dataset}' has no labelled rows, without which nothing can be estimated.")
    compute = Compute(choose_device(environment.device), config.train.precision)
    ready = shared.opened(config, data, compute)
    observer.phase(f"estimating the number of classes with {request.estimator}")
    plugin, root = registry.get("k-estimator", request.estimator), environment.store_options.root
    found = estimate_with(plugin, config, data, ready, root, request.largest, request.again)
    return EstimateAnswer(found, config, data)
