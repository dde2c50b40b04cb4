"""What a training step is fed: the rows and views of an epoch, and batches with trunk tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from itertools import islice

import torch

from gcdbench.contracts import Batch, Stage
from gcdbench.data.views import ViewPlan, random_plan, stored_plan
from gcdbench.prepare.run_context import Workspace
from gcdbench.system.parallel.communicator import ALONE, Ranks
from gcdbench.system.seeding import generator


def epoch_plans(space: Workspace, stage: Stage, epoch: int) -> Iterator[ViewPlan]:
    """The rows and views of every step of an epoch; depends on the stream's seed, stage and epoch only."""
    config = space.config
    random = generator(config.stream_seed, "batches", stage.name, epoch)
    for rows in space.sampler.epoch(random):
        if config.store.train_views:
            yield stored_plan(rows, config.views.count, config.store.train_views, random)
        else:
            yield random_plan(rows, config.views, random)


def first_plans(space: Workspace, stage: Stage, count: int) -> list[ViewPlan]:
    """The first steps of training, with fresh views: for estimates, which need no store."""
    random = generator(space.config.stream_seed, "batches", stage.name, 0)
    return [random_plan(rows, space.config.views, random) for rows in islice(space.sampler.epoch(random), count)]


def batches(space: Workspace, plans: Iterable[ViewPlan], ranks: Ranks = ALONE) -> Generator[tuple[ViewPlan, Batch]]:
    """Batches with trunk tokens; labels that are hidden are -1.

    Of several ranks, each computes the tokens of its share of the rows and knows the facts of all of them.
    """
    split, device = space.data.numbered, space.compute.device
    is_labelled, visible = torch.from_numpy(split.is_labelled), torch.from_numpy(split.visible)
    whole: deque[ViewPlan] = deque()

    def shares() -> Iterator[ViewPlan]:
        for plan in plans:
            whole.append(plan)
            yield plan.share(ranks.rank, ranks.size)

    for _, tokens in space.source.training(shares()):
        plan = whole.popleft()
        facts = (visible[plan.rows], is_labelled[plan.rows], plan.rows.clone())
        if space.compute.pins:
            facts = tuple(f.pin_memory() for f in facts)  # type: ignore[assignment]
        target, lab, index = (f.to(device, non_blocking=space.compute.pins) for f in facts)
        yield plan, Batch(tokens, target, lab, index, plan.views)
