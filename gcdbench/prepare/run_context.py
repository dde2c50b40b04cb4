"""Everything a run needs, built from its resolved config: data, split, backbone, method, protocol, run id."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from gcdbench import registry
from gcdbench.backbone.load import BackboneInfo
from gcdbench.backbone.projection import Projection
from gcdbench.backbone.split import SplitBackbone
from gcdbench.config.protocol import Protocol
from gcdbench.config.resolve import Resolved, RunConfig, run_id
from gcdbench.contracts import Evaluator, IntArray, Method, Task, Truth
from gcdbench.data.sampler import SAMPLERS, Sampler
from gcdbench.errors import PluginError, UsageError
from gcdbench.evaluation.selection import SelectionRule, selection_rule
from gcdbench.prepare.estimate_k import Estimated
from gcdbench.prepare.opened_data import DataSide, Tick
from gcdbench.prepare.plan import Plan
from gcdbench.prepare.pool import ImagePool, training_pool
from gcdbench.prepare.shared_resources import Cache
from gcdbench.prepare.token_source import TokenSource
from gcdbench.prepare.token_stores import Shelf
from gcdbench.system.device import Compute
from gcdbench.system.parallel.communicator import ALONE, Ranks
from gcdbench.system.plugin_call import plugin_call
from gcdbench.system.seeding import derive, fenced_rng, generator

MAX_K = 100_000
"""More classes than this are a slip of the keyboard."""


@dataclass
class Workspace:
    """One run, ready to be trained."""

    plan: Plan
    resolved: Resolved
    data: DataSide
    backbone: SplitBackbone
    backbone_info: BackboneInfo
    compute: Compute
    source: TokenSource
    shelf: Shelf
    sampler: Sampler
    evaluators: list[Evaluator]
    estimated: Estimated | None = None
    """What a K estimator found, if one was asked."""
    warnings: list[str] = field(default_factory=list)
    ranks: Ranks = ALONE
    """The processes that train the run together."""
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def config(self) -> RunConfig:
        """The resolved config."""
        return self.resolved.config

    @property
    def rule(self) -> SelectionRule:
        """Which epoch counts."""
        return selection_rule(self.config.eval.selection)

    @property
    def k(self) -> int:
        """Number of classes the method is told; one that finds it itself knows of the base classes only."""
        if self.estimated is not None:
            return self.estimated.k
        if self.config.data.k is not None:
            return self.config.data.k
        return len(self.data.split.base) if self.finds_k else self.data.split.num_classes

    @property
    def finds_k(self) -> bool:
        """Whether the method finds the number of classes itself."""
        return finds_k(self.plan, self.config)

    @property
    def k_source(self) -> str:
        """Where the number of classes comes from."""
        if self.estimated is not None:
            return "estimated"
        if self.config.data.k is not None:
            return "given"
        return "method" if self.finds_k else "true"

    @cached_property
    def run_id(self) -> str:
        """Hash of config, data, weights and the plugin's version."""
        return run_id(
            self.config,
            index=self.data.hash,
            split=self.data.split.hash(),
            weights=self.backbone_info.weights_hash,
            plugin=self.plan.method.version,
            rows="shuffled",  # by `data.splits.row_order`: what a method remembers of a row goes by these numbers
            **({} if self.estimated is None else {"k": f"{self.estimated.k} by {self.estimated.package}"}),
        )

    @cached_property
    def protocol(self) -> Protocol:
        """What makes this run's numbers comparable."""
        return Protocol(
            dataset=self.config.dataset,
            index_hash=self.data.hash,
            split_hash=self.data.split.hash(),
            scored_rows=self.config.eval.rows,
            evaluators={e.name: e.version for e in self.evaluators if e.headline},
            k=None if self.k_source == "method" else self.k,
            k_source=self.k_source,
            selection=self.config.eval.selection,
            reads=self.plan.method_class.traits.reads,
            approximations=self.config.approximations(),
        )

    def scored_rows(self, rows: str) -> IntArray:
        """Row numbers that are scored."""
        if rows == "unlabelled":
            return self.data.split.unlabelled
        assert self.data.test is not None
        return np.arange(len(self.data.test), dtype=np.int64)

    def truth(self, rows: str) -> Truth | None:
        """True classes of the scored rows; None where nobody knows them."""
        split = self.data.split
        target = split.target[split.unlabelled] if rows == "unlabelled" else self.data.test_target()
        if (target < 0).any():
            return None
        return Truth(target, len(split.base), split.num_classes)

    def method(self) -> Method:
        """A fresh method with its initial weights, on the device."""
        config = self.config
        task = Task(
            num_base=len(self.data.split.base),
            num_classes=self.k,
            backbone=self.backbone,
            train=config.train,
            steps_per_epoch=self.sampler.steps,
            generator=generator(config.seed, "init"),
        )
        with fenced_rng(config.seed, "init", "ambient"), plugin_call(config.method, "__init__"):
            return self.plan.method_class(config.method_config, task).to(self.compute.device, self.compute.dtype)

    def pool(self, rows: str, *random_names: str | int) -> ImagePool:
        """The training pool, whose queries are the rows to be predicted."""
        seed = derive(self.config.seed, "pool", *random_names)
        return training_pool(self.data, self.source, self.config.eval.batch_size, seed, rows, self.ranks)


def prepare(
    plan: Plan,
    resolved: Resolved,
    compute: Compute,
    root: Path,
    workers: int | None = None,
    cache: Cache | None = None,
    warn: Callable[[str], None] | None = None,
    shelf: Shelf | None = None,
    tick: Tick | None = None,
    ranks: Ranks = ALONE,
    own: Projection | None = None,
) -> Workspace:
    """Build a run's workspace, checking whatever can be checked before training.

    ``own`` is the PCA that the run has begun with, where that is not the one found now.
    """
    started = time.monotonic()
    cache, shelf = cache or Cache(), shelf or Shelf.at()
    config = resolved.config
    rule = selection_rule(config.eval.selection)
    with_test = config.eval.rows == "test" or (rule.metric is not None and rule.rows == "test")
    data = cache.data(plan.dataset_class, root, config.data, with_test, shelf, tick)
    warnings = _check(plan, config, data)
    backbone, info, source = cache.opened(config, data, compute, shelf, workers, ranks, tick, own)
    train = config.train
    if ranks.size > train.batch_size:
        raise UsageError(f"train.batch_size is {train.batch_size}, too small for {ranks.size} processes.")
    sampler = SAMPLERS[train.sampler](data.numbered, train.batch_size)
    estimated = None
    if config.data.k_from is not None:
        if tick is not None:
            tick(f"estimating the number of classes with {config.data.k_from}", 0, 1)
        found = ranks.from_first(lambda: vars(cache.estimate(config, data, backbone, info, source, shelf)))
        estimated = Estimated(**found)
    evaluators, broken = load_evaluators()
    warnings += broken
    for message in warnings if warn else ():
        warn(message)  # type: ignore[misc]
    space = Workspace(
        plan, resolved, data, backbone, info, compute, source, shelf, sampler, evaluators, estimated, warnings, ranks
    )
    space.timings["prepare"] = time.monotonic() - started
    return space


def finds_k(plan: Plan, config: RunConfig) -> bool:
    """Whether the method, with these settings, finds the number of classes itself."""
    with plugin_call(config.method, "finds_k"):
        return bool(plan.method_class.finds_k(config.method_config))


def _check(plan: Plan, config: RunConfig, data: DataSide) -> list[str]:
    split, name = data.split, data.dataset.name
    told = config.data.k is not None or config.data.k_from is not None
    if told and finds_k(plan, config):
        raise UsageError(f"The method '{config.method}' finds the number of classes itself: leave out --k.")
    if not told and not split.complete and not finds_k(plan, config):
        raise UsageError(
            f"Some images of '{name}' have no known class, so the number of classes is not known: say how many "
            f"classes to look for with --k N (at least {len(split.base)}), or have it estimated with --k ESTIMATOR "
            "(`gcdbench list k-estimators`)."
        )
    finder = config.data.k_from or (config.method if finds_k(plan, config) else None)
    if finder is not None and not len(split.labelled):
        raise UsageError(f"Without labelled rows, which '{name}' lacks, '{finder}' cannot find the number of classes.")
    if config.data.k is not None and config.data.k < len(split.base):
        raise UsageError(f"--k is {config.data.k}, but there are {len(split.base)} base classes already.")
    if not split.complete and selection_rule(config.eval.selection).metric is not None:
        raise UsageError(f"eval.selection={config.eval.selection} needs the true classes, which '{name}' lacks.")
    if config.data.k is not None and config.data.k > MAX_K:
        raise UsageError(f"--k is {config.data.k}; at most {MAX_K} classes are possible.")
    if config.views.count != plan.method_class.traits.views:
        needed = plan.method_class.traits.views
        raise UsageError(f"views.count is {config.views.count}, but the method '{config.method}' needs {needed}.")
    if 0 < config.store.train_views < config.views.count:
        raise UsageError(
            f"store.train_views is {config.store.train_views}, but a step takes {config.views.count} different views "
            "of each image: store at least so many."
        )
    warnings = []
    wanted = data.dataset.expected.train if data.dataset.expected else None
    if wanted is not None and wanted != len(data.index):
        warnings.append(
            f"{data.dataset.title} has {len(data.index):,} training rows instead of {wanted:,}: "
            "these numbers will not compare with published ones."
        )
    bad = data.bad_items()
    if bad:
        warnings.append(
            f"{len(bad):,} image{'s' if len(bad) > 1 else ''} of {data.dataset.title} cannot be read and "
            f"{'are' if len(bad) > 1 else 'is'} left out (see skipped.csv in the run directory). The first: {bad[0][1]}"
        )
    rule = selection_rule(config.eval.selection)
    if rule.oracle:
        warnings.append(f"The selection rule '{rule.name}' looks at hidden labels; its numbers are an oracle's.")
    return warnings


def load_evaluators() -> tuple[list[Evaluator], list[str]]:
    """Every evaluator that can be imported, and a sentence for each that cannot."""
    loaded: list[Evaluator] = []
    broken: list[str] = []
    for plugin in registry.plugins("evaluator"):
        try:
            with plugin_call(plugin.name, "__init__", kind="evaluator"):
                loaded.append(plugin.load()())
        except PluginError as fault:
            broken.append(str(fault))
    return loaded, broken
