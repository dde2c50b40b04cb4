"""Everything a run needs, built from its resolved config: data, split, backbone, protocol, run id."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gcdbench.backbone.load import BackboneInfo
from gcdbench.backbone.projection import Projection
from gcdbench.backbone.split import SplitBackbone
from gcdbench.config.protocol import Protocol
from gcdbench.config.resolve import Resolved, RunConfig, run_id
from gcdbench.contracts import Evaluator, IntArray, Method, Task, Truth
from gcdbench.data.images import DirectImages
from gcdbench.data.sampler import SAMPLERS, Sampler
from gcdbench.errors import UsageError
from gcdbench.evaluation.load import load_evaluators
from gcdbench.evaluation.selection import SelectionRule, selection_rule
from gcdbench.prepare.checks import check_run, finds_k
from gcdbench.prepare.environment import RunEnvironment, StoreOptions
from gcdbench.prepare.estimate_k import Estimated, reliability
from gcdbench.prepare.opened_data import OpenedData
from gcdbench.prepare.pool import ImagePool, PoolOptions, training_pool
from gcdbench.prepare.request import ResolvedRequest
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.prepare.token_source import ReadyBackbone, TokenSource
from gcdbench.system.device import Compute, choose_device
from gcdbench.system.observer import RunName
from gcdbench.system.parallel.communicator import Communicator
from gcdbench.system.plugin_call import plugin_call
from gcdbench.system.seeding import derive, fenced_rng, generator


@dataclass
class RunNotes:
    """What is noted of a run on its way, for its record."""

    warnings: list[str] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds by phase."""

    def add(self, text: str) -> None:
        """A sentence, once."""
        if text not in self.warnings:
            self.warnings.append(text)


@dataclass(frozen=True, eq=False, repr=False)
class RunContext:
    """One run, ready to be trained. Nothing in it changes but its notes."""

    asked: ResolvedRequest
    resolved: Resolved
    environment: RunEnvironment
    data: OpenedData
    ready: ReadyBackbone
    compute: Compute
    sampler: Sampler
    evaluators: list[Evaluator]
    estimated: Estimated | None = None
    """What a K estimator found, if one was asked."""
    notes: RunNotes = field(default_factory=RunNotes)

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
        """Number of classes the method is given; one that finds it itself knows of the base classes only."""
        if self.estimated is not None:
            return self.estimated.k
        if self.config.data.k is not None:
            return self.config.data.k
        return len(self.data.split.base) if self.finds_k else self.data.split.num_classes

    @property
    def finds_k(self) -> bool:
        """Whether the method finds the number of classes itself."""
        return finds_k(self.asked, self.config)

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
            plugin=self.asked.method.version,
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
            reads=self.asked.method_class.traits.reads,
            approximations=self.config.approximations(),
        )

    def scored_rows(self, rows: str) -> IntArray:
        """Row numbers that are scored."""
        if rows == "unlabelled":
            return self.data.split.unlabelled
        assert self.data.test is not None
        return np.arange(len(self.data.test), dtype=np.int64)

    def truth(self, rows: str) -> Truth | None:
        """True classes of the scored rows; None where they are unknown."""
        split = self.data.split
        target = split.target[split.unlabelled] if rows == "unlabelled" else self.data.test_target()
        if (target < 0).any():
            return None
        return Truth(target, len(split.base), split.num_classes)

    @property
    def name(self) -> RunName:
        """Which run this is, for a person."""
        c = self.config
        return RunName(c.method, c.recipe, c.dataset, c.seed, c.train.epochs)

    @property
    def backbone(self) -> SplitBackbone:
        """The backbone as trunk and tails."""
        return self.ready.backbone

    @property
    def backbone_info(self) -> BackboneInfo:
        """What the record says of the backbone."""
        return self.ready.info

    @property
    def source(self) -> TokenSource:
        """Where trunk tokens come from; shared by runs that see the same images."""
        return self.ready.source

    @property
    def ranks(self) -> Communicator:
        """The processes that train the run together."""
        return self.environment.ranks

    @property
    def store_options(self) -> StoreOptions:
        """Where stores are."""
        return self.environment.store_options

    def check_files(self) -> None:
        """Stop if image files have changed since the run was prepared; packed copies cannot."""
        direct = tuple(part for part, images in self.source.images.items() if isinstance(images, DirectImages))
        self.data.check_files(direct, self.notes.add)


def build_method(ctx: RunContext) -> Method:
    """A fresh method with its initial weights, on the device."""
    config = ctx.config
    task = Task(
        num_base=len(ctx.data.split.base),
        num_classes=ctx.k,
        backbone=ctx.backbone,
        train=config.train,
        steps_per_epoch=ctx.sampler.steps,
        generator=generator(config.seed, "init"),
    )
    with fenced_rng(config.seed, "init", "ambient"), plugin_call(config.method, "__init__"):
        return ctx.asked.method_class(config.method_config, task).to(ctx.compute.device, ctx.compute.dtype)


def run_pool(ctx: RunContext, rows: str, *random_names: str | int) -> ImagePool:
    """The training pool, whose queries are the rows to be predicted."""
    how = PoolOptions(ctx.config.eval.batch_size, derive(ctx.config.seed, "pool", *random_names), ranks=ctx.ranks)
    return training_pool(ctx.data, ctx.source, how, rows)


def prepare_run(
    asked: ResolvedRequest,
    resolved: Resolved,
    shared: SharedResources,
    own: Projection | None = None,
    quiet: bool = False,
) -> RunContext:
    """Build a run's context, checking whatever can be checked before training.

    ``own`` is the PCA that the run has begun with, where that is not the one found now; ``quiet`` shows no warnings
    (another seed of the same run has shown them).
    """
    started = time.monotonic()
    environment, observer, config = shared.environment, shared.observer, resolved.config
    compute = Compute(choose_device(environment.device), config.train.precision)
    rule = selection_rule(config.eval.selection)
    with_test = config.eval.rows == "test" or (rule.metric is not None and rule.rows == "test")
    data = shared.data(asked.dataset_class, config.data, with_test)
    warnings = check_run(asked, config, data)
    if not quiet:
        for message in (*data.dataset.remarks(), *warnings):
            observer.warn(message)
    ready = shared.opened(config, data, compute, own)
    train, ranks = config.train, environment.ranks
    if ranks.size > train.batch_size:
        raise UsageError(f"train.batch_size is {train.batch_size}, too small for {ranks.size} processes.")
    sampler = SAMPLERS[train.sampler](data.numbered, train.batch_size)
    estimated = None
    if config.data.k_from is not None:
        observer.working(f"estimating the number of classes with {config.data.k_from}", 0, 1)
        found = ranks.from_first(lambda: vars(shared.estimate(config, data, ready)))
        estimated = Estimated(**found)
        if not quiet:
            observer.announce(f"K = {estimated.k} by {config.data.k_from}.{reliability(len(data.split.base))}")
    evaluators, broken = load_evaluators()
    warnings += broken
    if not quiet:
        for message in broken:
            observer.warn(message)
    notes = RunNotes(warnings, {"prepare": time.monotonic() - started})
    return RunContext(asked, resolved, environment, data, ready, compute, sampler, evaluators, estimated, notes)
