"""The number of classes of a dataset without a run: `gcdbench estimate-k`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gcdbench import registry
from gcdbench.backbone.catalogue import short_name
from gcdbench.config.resolve import Layer, RunConfig, resolve
from gcdbench.errors import UsageError
from gcdbench.prepare.estimate_k import Estimated, estimate_with
from gcdbench.prepare.opened_data import DataSide
from gcdbench.prepare.plan import backbone_layer, dataset_layer
from gcdbench.prepare.shared_resources import Cache
from gcdbench.system.device import Compute, choose_device
from gcdbench.system.observer import Reporter

if TYPE_CHECKING:
    from gcdbench.runs.execute import Place


@dataclass(frozen=True)
class _NoMethod:
    """No method, no settings."""


@dataclass(frozen=True)
class EstimateAnswer:
    """What was found, and on what."""

    found: Estimated
    config: RunConfig
    data: DataSide

    @property
    def true_k(self) -> int | None:
        """The true number of classes, where it is known."""
        return self.data.split.num_classes if self.data.split.complete else None


def estimate_alone(
    dataset: str,
    estimator: str,
    place: Place,
    *,
    backbone: str | None = None,
    largest: int | None = None,
    again: bool = False,
    settings: Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
) -> EstimateAnswer:
    """Ask an estimator about a dataset with the settings that a run would have."""
    reporter = reporter or Reporter()
    dataset_class = registry.load("dataset", dataset)
    flags = {} if backbone is None else {"backbone.name": backbone}
    over = [Layer("--set", dict(settings or {})), Layer("command line", flags)]

    def build(between: list[Layer]) -> RunConfig:
        return resolve(
            method="",
            dataset=registry.canonical("dataset", dataset),
            recipe="",
            seed=0,
            method_config=_NoMethod,
            layers=[dataset_layer(dataset_class), *between, *over],
        ).config

    config = build(backbone_layer(short_name(build([]).backbone.name), dataset_class))
    cache = Cache()
    reporter.phase("preparing data and backbone")
    data = cache.data(dataset_class, place.root, config.data, False, place.shelf, reporter.working)
    if not len(data.split.labelled):
        raise UsageError(f"'{config.dataset}' has no labelled rows, without which nothing can be estimated.")
    compute = Compute(choose_device(place.device), config.train.precision)
    network, info, source = cache.opened(config, data, compute, place.shelf, place.workers, tick=reporter.working)
    reporter.phase(f"estimating the number of classes with {estimator}")
    plugin = registry.get("k-estimator", estimator)
    found = estimate_with(plugin, config, data, network, info, source, place.shelf.root, largest, again)
    return EstimateAnswer(found, config, data)
