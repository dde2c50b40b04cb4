"""What a training step is fed: the stages of a method, the rows and views of an epoch, batches with trunk tokens."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice

import torch

from gcdbench.contracts import Batch, Method, Stage
from gcdbench.data.views import ViewPlan, random_plan, stored_plan
from gcdbench.errors import PluginError
from gcdbench.prepare.run_context import RunContext
from gcdbench.system.parallel.communicator import ALONE, Communicator
from gcdbench.system.plugin_call import plugin_call
from gcdbench.system.seeding import AmbientStream, generator


def stages_of(ctx: RunContext, method: Method) -> list[Stage]:
    """The stages a method asks for, checked; asked under the same random numbers whoever asks."""
    name = ctx.config.method
    with AmbientStream(ctx.config.seed, "stages"), plugin_call(name, "stages"):
        stages = list(method.stages())
    if not all(isinstance(stage, Stage) for stage in stages):
        raise PluginError(f"The method '{name}' must return gcdbench.Stage objects from stages.")
    if len({stage.name for stage in stages}) < len(stages):
        raise PluginError(f"The method '{name}' has two stages of the same name; random numbers go by the name.")
    return stages


def epoch_plans(ctx: RunContext, stage: Stage, epoch: int) -> Iterator[ViewPlan]:
    """The rows and views of every step of an epoch; depends on the stream's seed, stage and epoch only."""
    config = ctx.config
    random = generator(config.stream_seed, "batches", stage.name, epoch)
    for rows in ctx.sampler.epoch(random):
        if config.store.train_views:
            yield stored_plan(rows, config.views.count, config.store.train_views, random)
        else:
            yield random_plan(rows, config.views, random)


def first_plans(ctx: RunContext, stage: Stage, count: int) -> list[ViewPlan]:
    """The first steps of training, with fresh views: for estimates, which need no store."""
    random = generator(ctx.config.stream_seed, "batches", stage.name, 0)
    return [random_plan(rows, ctx.config.views, random) for rows in islice(ctx.sampler.epoch(random), count)]


def batches(
    ctx: RunContext, plans: Iterable[ViewPlan], ranks: Communicator = ALONE
) -> Generator[tuple[ViewPlan, Batch]]:
    """Batches with trunk tokens; labels that are hidden are -1.

    Of several ranks, each computes the tokens of its share of the rows and knows the facts of all of them.
    """
    split, device = ctx.data.numbered, ctx.compute.device
    is_labelled, visible = torch.from_numpy(split.is_labelled), torch.from_numpy(split.visible)
    whole: deque[ViewPlan] = deque()

    def shares() -> Iterator[ViewPlan]:
        for plan in plans:
            whole.append(plan)
            yield plan.share(ranks.rank, ranks.size)

    for _, tokens in ctx.source.training(shares()):
        plan = whole.popleft()
        facts = (visible[plan.rows], is_labelled[plan.rows], plan.rows.clone())
        if ctx.compute.pins:
            facts = tuple(f.pin_memory() for f in facts)  # type: ignore[assignment]
        target, lab, index = (f.to(device, non_blocking=ctx.compute.pins) for f in facts)
        yield plan, Batch(tokens, target, lab, index, plan.views)


class SharedBatch:
    """One batch that several lanes train on, one after the other. A lane that writes into it is found out."""

    def __init__(self, ctx: RunContext, plan: ViewPlan, batch: Batch) -> None:
        self._ctx, self._plan, self._batch = ctx, plan, batch
        self._spoilt = False

    @contextmanager
    def lent_to(self, name: str) -> Iterator[Batch]:
        """Lend it to the lane of a method: the same numbers, with a tensor of its own for tokens, so that a gradient
        asked for is its own. If the lane has changed them in place, it fails, and the next lane gets them made again.
        """
        if self._spoilt:
            again = batches(self._ctx, [self._plan], self._ctx.ranks)
            self._batch, self._spoilt = next(agreed(again, self._ctx.ranks))[1], False
        before = _versions(self._batch)
        try:
            yield dataclasses.replace(self._batch, tokens=self._batch.tokens.detach())
        finally:
            self._spoilt = _versions(self._batch) != before
        if self._spoilt:
            raise PluginError(
                f"The method '{name}' changed the tensors of its batch in place. "
                "They are shared by all lanes: work on a copy."
            )


def step_batches(ctx: RunContext, stage: Stage, epoch: int, first: int) -> Generator[tuple[int, SharedBatch]]:
    """The number and the batch of every step of an epoch, from step ``first`` on, the same on all ranks."""
    plans = islice(epoch_plans(ctx, stage, epoch), first, None)
    with closing(batches(ctx, plans, ctx.ranks)) as stream:
        for step, (plan, batch) in enumerate(agreed(stream, ctx.ranks), first):
            yield step, SharedBatch(ctx, plan, batch)


def agreed(stream: Iterator[tuple[ViewPlan, Batch]], ranks: Communicator) -> Iterator[tuple[ViewPlan, Batch]]:
    """The batches; what one rank cannot read or compute is the fault of all."""
    while True:
        with ranks.agreeing():
            found = next(stream, None)
        if found is None:
            return
        yield found


def _versions(batch: Batch) -> tuple[int, ...]:
    """Counts of in-place changes."""
    return tuple(t._version for t in (batch.tokens, batch.target, batch.labelled, batch.index))
