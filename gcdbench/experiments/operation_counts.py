"""Operations of a run without data, weights or a GPU: its real code on tensors that have a shape and no numbers.

Counted are matrix products, attention and convolutions, by the same counter that the record of a run and the benchmark
use. Clustering (k-means, Ward) is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gcdbench.backbone.load import on_meta
from gcdbench.backbone.split import SplitBackbone
from gcdbench.config.resolve import RunConfig
from gcdbench.config.sections import MAX_COUNT, BackboneConfig
from gcdbench.contracts import Batch, ClassSplit, IntArray, Method, Progress, Stage, Task
from gcdbench.data.splits import cut_base
from gcdbench.errors import UsageError
from gcdbench.evaluation.selection import selection_rule
from gcdbench.prepare.checks import finds_k
from gcdbench.prepare.request import ResolvedRequest, RunRequest, resolve_request
from gcdbench.system.plugin_call import plugin_call

META = torch.device("meta")


@dataclass(frozen=True)
class PoolPass:
    """Features of a whole pool that a method asks for."""

    views: str
    """`test` views never change and can be stored; `train` views are new each time, or stored ones too."""
    rows: int
    embed: float
    """Operations of the method's own part, per row."""


@dataclass(frozen=True)
class StageCount:
    """A stage of training."""

    name: str
    epochs: int
    step: int
    """The method's own operations in a step."""
    first: list[PoolPass]
    """What it asks for before the first epoch."""
    pools: list[PoolPass]
    """What it asks for before each later one."""


@dataclass
class RunCount:
    """What one run costs."""

    config: RunConfig
    rows: int
    """Training rows of the dataset."""
    steps: int
    """Steps of an epoch."""
    tokens: tuple[int, int]
    """Tokens of a view, and their width."""
    trunk: int
    """Operations of the trunk for one view."""
    view: tuple[int, ...]
    """Shape of a view as the method gets it: its tokens, or pixels."""
    stages: list[StageCount] = field(default_factory=list)
    final: list[PoolPass] = field(default_factory=list)
    """Pools that its prediction asks for."""

    @property
    def epochs(self) -> int:
        """Of all stages."""
        return sum(stage.epochs for stage in self.stages)

    @property
    def views_per_epoch(self) -> int:
        """Views that an epoch computes or reads."""
        return self.steps * self.config.train.batch_size * self.config.views.count

    @property
    def own(self) -> float:
        """Operations of the method's own part, pools included."""
        steps = sum(stage.epochs * self.steps * stage.step for stage in self.stages)
        return steps + sum(p.rows * p.embed for p in self.passes())

    @property
    def predictions(self) -> int:
        """How often the run predicts: when it evaluates, and at the end unless an earlier epoch is selected."""
        rule = selection_rule(self.config.eval.selection)
        selects = rule.metric is not None
        every = self.config.eval.every or int(selects)
        within = sum(-(-stage.epochs // every) for stage in self.stages) if every else 0
        return within * (2 if selects and rule.rows != self.config.eval.rows else 1) + (not (selects and within))

    def passes(self, views: str | None = None) -> list[PoolPass]:
        """Every time a pool is gone through."""
        found = [p for stage in self.stages if stage.epochs for p in stage.first]
        found += [p for stage in self.stages for p in stage.pools for _ in range(stage.epochs - 1)]
        found += self.final * self.predictions
        return [p for p in found if views is None or p.views == views]


def training_rows(planned: ResolvedRequest, root: Path) -> int:
    """As published; where no number was, the most there can be; of a person's own images, those that are there."""
    expected = planned.dataset_class.expected
    if expected is None:
        return len(planned.dataset_class(root).index("train"))
    if expected.train is not None:
        return expected.train
    assert expected.per_class is not None
    return expected.classes * expected.per_class[1]


def count_run(request: RunRequest, root: Path) -> RunCount:
    """The operations of a run by parts."""
    planned = resolve_request(request)
    config = planned.runs[0].config
    rows = min(training_rows(planned, root), config.data.images or MAX_COUNT)
    backbone, trunk, view = _network(config.backbone, config.views.crop)
    steps = max(1, rows // config.train.batch_size)
    classes = cut_base(planned.dataset_class(root).class_split(), config.data.novel_ratio)
    method = _method(planned, config, classes, backbone, steps)
    with sdpa_kernel(SDPBackend.MATH):
        found = RunCount(config, rows, steps, (backbone.num_tokens, backbone.embed_dim), trunk, view)
        with plugin_call(config.method, "stages"):
            stages = list(method.stages())
        pool = ShapePool(rows, len(classes.base), view)
        for stage in stages:
            before = []
            for epoch in (0, max(0, stage.epochs - 1)):
                pool.passes.clear()
                t = Progress(stage.name, epoch, stage.epochs, 0, steps, torch.Generator())
                _whatever_works(lambda t=t: method.on_epoch_start(pool, t))  # type: ignore[misc]
                before.append(list(pool.passes))
            found.stages.append(StageCount(stage.name, stage.epochs, _step(method, found, stage), *before))
        pool.passes.clear()
        _whatever_works(lambda: method.eval().predict(pool))
        found.final = list(pool.passes)
        if not found.final:  # rather no number than one that is too small
            raise UsageError(f"What '{config.method}' looks at to predict cannot be counted without data.")
    return found


@cache
def _network(config: BackboneConfig, side: int) -> tuple[SplitBackbone, int, tuple[int, ...]]:
    """A backbone's shape, the operations of its trunk for one view, and what comes out; many runs have the same."""
    backbone, shapes = on_meta(config, side), list[tuple[int, ...]]()
    with sdpa_kernel(SDPBackend.MATH):
        image = torch.zeros((1, 3, side, side), device=META)
        trunk = _counted(lambda: shapes.append(tuple(backbone.trunk.raw(image).shape[1:])))
    return backbone, trunk, shapes[0]


def _method(
    planned: ResolvedRequest, config: RunConfig, classes: ClassSplit, backbone: SplitBackbone, steps: int
) -> Method:
    base, asked_k = len(classes.base), config.data.k
    every = base if finds_k(planned, config) else base + len(classes.novel)
    task = Task(base, asked_k or every, backbone, config.train, steps)
    with META, plugin_call(config.method, "__init__"):
        return planned.method_class(config.method_config, task)


def _step(method: Method, run: RunCount, stage: Stage) -> int:
    """Operations of a step, forward and backward; the mean over an epoch where steps train different things."""
    if not stage.epochs:
        return 0
    kinds: dict[tuple[str, ...], list[int]] = {}
    with plugin_call(run.config.method, "active"):
        for number in range(run.steps):
            kinds.setdefault(tuple(method.active(_last_epoch(run, stage, number)) or ()), []).append(number)
    return (
        sum(len(steps) * _one_step(method, run, _last_epoch(run, stage, steps[0])) for steps in kinds.values())
        // run.steps
    )


def _last_epoch(run: RunCount, stage: Stage, step: int) -> Progress:
    """When terms that begin late have begun."""
    return Progress(stage.name, stage.epochs - 1, stage.epochs, step, run.steps, None)


def _one_step(method: Method, run: RunCount, t: Progress) -> int:
    size, views = run.config.train.batch_size, run.config.views.count
    tokens = torch.zeros((size * views, *run.view), device=META)
    target = torch.zeros(size, dtype=torch.long, device=META)
    batch = Batch(tokens, target, torch.zeros(size, dtype=torch.bool, device=META), target, views)
    method.train()

    def step() -> None:
        method(batch, t).total().backward()

    try:
        return _counted(step)
    except Exception as fault:  # a method whose steps depend on the numbers themselves
        raise UsageError(
            f"The operations of '{run.config.method}' cannot be counted without data "
            f"({type(fault).__name__}: {fault}); the record of a run has them."
        ) from fault


def _counted(action: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        action()
    return int(counter.get_total_flops())


def _whatever_works(action: Callable[[], Any]) -> None:
    """Clustering needs numbers and fails without them; the features it asks for have been noted before."""
    with torch.no_grad():
        try:
            action()
        except Exception:
            return


class ShapePool:
    """A pool without numbers that notes what is asked of it."""

    def __init__(self, rows: int, num_base: int, view: tuple[int, ...], part: ShapePool | None = None) -> None:
        self.index: IntArray = np.arange(rows)
        self.labelled = np.arange(rows) < rows // 4
        self.target: IntArray = np.where(self.labelled, np.arange(rows) % max(1, num_base), -1)
        self.passes: list[PoolPass] = [] if part is None else part.passes
        self._view = view
        # About as many rows are scored as are not labelled: half of the images of half of the classes are.
        self._queries = ShapePool(rows - rows // 4, num_base, view, self) if part is None else self

    def __len__(self) -> int:
        return len(self.index)

    @property
    def queries(self) -> ShapePool:
        """The rows without a label."""
        return self._queries

    @property
    def query_places(self) -> IntArray | None:
        """The last ones."""
        return np.arange(len(self) - len(self._queries), len(self))

    def generator(self) -> torch.Generator:
        """Of whatever seed."""
        return torch.Generator()

    def features(self, embed: Callable[[Tensor], Tensor], views: str = "test") -> Tensor:
        """The shape of them; noted."""
        few = 8
        with FlopCounterMode(display=False) as counter:
            try:
                out = embed(torch.zeros((few, *self._view), device=META))
            finally:  # a method that looks at numbers afterwards has passed the tail by then
                self.passes.append(PoolPass(views, len(self), counter.get_total_flops() / few))
        return torch.empty((len(self), *out.shape[1:]), dtype=out.dtype, device=META)

    def once(self, action: Callable[[], Any]) -> Any:
        """There is one process."""
        return action()
