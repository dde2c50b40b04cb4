"""The number of classes as a K estimator finds it: from images and visible labels, once per dataset and backbone.

The answer does not depend on the seed of a run, so that all of its seeds assume the same number. It is kept in the
cache: a run that is resumed later must not find another one because another number of threads rounds differently.
"""

from __future__ import annotations

import math
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gcdbench import __version__, registry
from gcdbench.config.resolve import RunConfig
from gcdbench.contracts import KEstimate, KEstimator, Task
from gcdbench.data.store.store_folder import CannotStore, StoreFolder
from gcdbench.errors import PluginError, UsageError
from gcdbench.prepare.opened_data import OpenedData
from gcdbench.prepare.pool import PoolOptions, training_pool
from gcdbench.prepare.token_identity import TokenIdentity
from gcdbench.prepare.token_source import ReadyBackbone
from gcdbench.system.files import read_json, write_json
from gcdbench.system.plugin_call import plugin_call
from gcdbench.system.seeding import derive, fenced_rng, generator

LARGEST = 1000
"""Largest number of classes that is considered, unless the user says otherwise."""
FEWEST_ROWS = 3
"""Rows of a class, on average, in what is considered by default."""
FEW_CLASSES = 10
"""Known classes below which an estimate is not to be relied on."""
FILE = "estimate.json"


def reliability(known_classes: int) -> str:
    """A sentence where an estimate is not to be relied on."""
    if known_classes >= FEW_CLASSES:
        return ""
    return (
        f" Not reliable: {known_classes} known classes say little of how fine the others are. Compare estimators, and "
        "try several numbers."
    )


@dataclass(frozen=True)
class Estimated:
    """A number of classes and where it came from."""

    k: int
    estimator: str
    package: str
    largest: int
    seconds: float
    scores: dict[int, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "scores": {str(k): score for k, score in sorted(self.scores.items())}}


def estimate_with(
    plugin: registry.Plugin,
    config: RunConfig,
    data: OpenedData,
    ready: ReadyBackbone,
    store_root: Path,
    largest: int | None = None,
    again: bool = False,
) -> Estimated:
    """Ask an estimator, or take what it has answered before for the same data and backbone.

    ``again`` asks in any case.
    """
    kind = plugin.load()
    if not (isinstance(kind, type) and issubclass(kind, KEstimator)):
        raise PluginError(f"The plugin '{plugin.name}' is not a gcdbench.KEstimator but {kind!r}.")
    rows, num_base = len(data.index), len(data.split.base)
    bounded = max(2 * num_base, min(LARGEST, rows // FEWEST_ROWS))
    limit = min(bounded if largest is None else largest, rows)
    if limit < num_base:
        raise UsageError(f"At most {limit} classes are asked for, but there are {num_base} base classes already.")
    package = f"{plugin.package} {plugin.version}"
    facts = {
        "estimator": plugin.name,
        "package": package,
        "gcdbench": __version__,  # whose clustering it may use
        "version": kind.version,
        "dataset": config.dataset,
        "index": data.hash,
        "split": data.split.hash(),
        "files": {part: data.dataset.files_hash(part) for part in data.parts},
        "train_from": config.backbone.train_from,
        "largest": limit,
        **TokenIdentity.of(config, ready.info).estimate_facts(),
        **({} if config.backbone.tail_norm == "own" else {"tail_norm": config.backbone.tail_norm}),
    }
    store = StoreFolder(store_root, "estimates", facts)
    known = None if again else _read(store)
    if known is not None and num_base <= known.k <= limit:
        return known
    shutil.rmtree(store.path, ignore_errors=True)  # damaged, if it is there at all
    started = time.monotonic()
    answer = _ask(plugin.name, kind, config, data, ready, limit)
    found = Estimated(
        int(answer.k),
        plugin.name,
        package,
        limit,
        round(time.monotonic() - started, 3),
        {int(k): float(score) for k, score in answer.scores.items()},
    )
    _keep(store, found)
    return found


def _ask(
    name: str,
    kind: type[KEstimator],
    config: RunConfig,
    data: OpenedData,
    ready: ReadyBackbone,
    limit: int,
) -> KEstimate:
    num_base = len(data.split.base)
    task = Task(
        num_base=num_base,
        num_classes=num_base,
        backbone=ready.backbone,
        train=config.train,
        steps_per_epoch=1,
        generator=generator(0, "estimate-k"),
    )
    pool = training_pool(data, ready.source, PoolOptions(config.eval.batch_size, derive(0, "estimate-k")))
    with torch.no_grad(), fenced_rng(0, "estimate-k"), plugin_call(name, "estimate", kind="K estimator"):
        answer = kind().estimate(pool, task, limit)
    if not isinstance(answer, KEstimate) or isinstance(answer.k, bool) or not isinstance(answer.k, int | np.integer):
        raise PluginError(f"The K estimator '{name}' must return a gcdbench.KEstimate with a whole number.")
    if not all(math.isfinite(float(score)) for score in answer.scores.values()):
        raise PluginError(f"The K estimator '{name}' gives a score that is not a finite number.")
    if not num_base <= answer.k <= limit:
        raise PluginError(f"The K estimator '{name}' answered {answer.k}, which is not from {num_base} to {limit}.")
    return answer


def _read(store: StoreFolder) -> Estimated | None:
    if store.description() is None:
        return None
    try:
        tree = read_json(store.path / FILE)
        scores = {int(k): float(score) for k, score in tree["scores"].items()}
        return Estimated(
            int(tree["k"]),
            str(tree["estimator"]),
            str(tree["package"]),
            int(tree["largest"]),
            float(tree["seconds"]),
            scores,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _keep(store: StoreFolder, found: Estimated) -> None:
    def fill(folder: Path) -> dict[str, Any]:
        write_json(folder / FILE, found.as_dict())
        return {"k": found.k}

    with suppress(CannotStore):  # it is then estimated again next time
        store.build(40 * len(found.scores) + 400, "the estimated number of classes", fill, lambda text: None)
