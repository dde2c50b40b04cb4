"""The number of ranks does not change the experiment: losses of every step, predictions, and what is written.

Ranks take turns in one process here; `test_processes.py` does the same for every method with real ones.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from gcdbench import registry
from gcdbench.data.datasets.digits import Digits
from gcdbench.prepare.run_context import RunNotes, prepare_run, run_pool
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.system.parallel.communicator import ALONE
from gcdbench.testing.lab import Lab
from gcdbench.testing.subject import Subject
from gcdbench.testing.turns import in_turns
from gcdbench.training.method_trainer import MethodTrainer

UNEVEN = 85
"""A batch size that neither 2 nor 3 divides, so that shares differ."""
STEPS = 20


def lab_of(name: str) -> Lab:
    plugin = registry.get("method", name)
    return Lab(Subject(plugin, plugin.load()))


def space_of(lab: Lab, precision: str, **settings):
    """The method's own settings for digits, with the batch size of most methods there, for one epoch: 28 steps."""
    short = {"train.epochs": 1, "train.batch_size": 64, **settings}
    return lab.ctx(precision=precision, dataset=Digits, settings=short)


class Sequence:
    """The losses of every step of a run, taken where they are summed."""

    def __init__(self, monkeypatch) -> None:
        self.values: dict[int, list[list[float]]] = {}
        original, sequence = MethodTrainer._accumulate, self

        def accumulate(trainer, losses, total, step):
            found = [total.item(), *(term.value.item() for term in losses.values())]
            sequence.values.setdefault(trainer.ranks.rank if not trainer.ranks.alone else -1, []).append(found)
            original(trainer, losses, total, step)

        monkeypatch.setattr(MethodTrainer, "_accumulate", accumulate)

    def take(self) -> dict[int, np.ndarray]:
        """By rank the losses of the first steps, one after another; -1 is a process alone."""
        assert all(len(values) >= STEPS for values in self.values.values())
        found = {rank: np.concatenate(values[:STEPS]) for rank, values in self.values.items()}
        self.values.clear()
        return found


def compare(name: str, precision: str, tolerance: float, sizes, monkeypatch, **settings) -> None:
    lab, sequence = lab_of(name), Sequence(monkeypatch)
    one = lab.train(space_of(lab, precision, **settings))[0]
    (wanted,) = sequence.take().values()
    for size in sizes:
        many = lab.train_on_ranks(size, space_of(lab, precision, **settings))
        found = sequence.take()
        assert sorted(found) == list(range(size))
        for values in found.values():
            np.testing.assert_allclose(values, wanted, rtol=tolerance, atol=tolerance * 1e-3)
        assert np.array_equal(one.prediction.cluster, many.prediction.cluster)
        for branch, rows in one.prediction.base.items():
            assert np.array_equal(rows, many.prediction.base[branch])


@pytest.mark.parametrize("method", ["rlcd"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp64", 1e-6), ("fp32", 1e-4)])
def test_two_and_three_ranks_train_as_one(method, precision, tolerance, monkeypatch):
    compare(method, precision, tolerance, (2, 3), monkeypatch, **{"train.batch_size": UNEVEN})


def test_clustering_alone_is_the_same_on_ranks():
    lab = lab_of("kmeans")
    one = lab.train(space_of(lab, "fp32"))[0]
    many = lab.train_on_ranks(3, space_of(lab, "fp32"))
    assert np.array_equal(one.prediction.cluster, many.prediction.cluster)


def test_stored_views_are_shared_as_well(tmp_path):
    """Plans of stored views are cut like those of fresh ones."""
    from gcdbench.data.views import random_plan, stored_plan

    rows, random = torch.arange(7), torch.Generator().manual_seed(0)
    config = space_of(lab_of("rlcd"), "fp32").config.views
    for plan in (stored_plan(rows, 2, 4, random), random_plan(rows, config, random)):
        shares = [plan.share(rank, 3) for rank in range(3)]
        assert torch.equal(torch.cat([s.rows for s in shares]).sort().values, rows)
        for field in dataclasses.fields(plan):
            values = getattr(plan, field.name)
            if values is None:
                assert all(getattr(s, field.name) is None for s in shares)
            elif field.name != "rows":
                for rank, one in enumerate(shares):
                    assert torch.equal(getattr(one, field.name), values[:, rank::3])
        assert plan.share(0, 1) is plan


def on(ctx, ranks):
    """The same run on ranks, with notes of its own."""
    return dataclasses.replace(ctx, environment=dataclasses.replace(ctx.environment, ranks=ranks), notes=RunNotes())


def test_a_pool_shared_by_ranks_is_the_pool_of_one():
    """Both kinds of views, in the order of rows, and to the last bit, since whole batches are embedded."""
    lab = lab_of("rlcd")
    ctx = space_of(lab, "fp32", **{"eval.batch_size": 100})
    tail = ctx.backbone.tail()

    def features(ranks):
        pool = run_pool(on(ctx, ranks), "unlabelled", "test")
        embed = lambda tokens: tail(tokens)[:, 0]  # noqa: E731
        return [pool.features(embed), pool.features(embed, views="train"), pool.queries.features(embed)]

    wanted = features(ALONE)
    for size in (2, 3):
        for found in in_turns(size, features):
            for one, two in zip(found, wanted, strict=True):
                assert torch.equal(one, two)


def test_lanes_on_ranks_are_the_runs_alone_on_ranks():
    lab = lab_of("simgcd")
    rate = lab.usual.config.train.lr

    def rank(ranks):
        contexts = [lab.ctx(), lab.ctx(settings={"train.lr": rate / 2})]
        own = [on(ctx, ranks) for ctx in contexts]
        import tempfile
        from pathlib import Path

        from gcdbench.system.observer import Observer

        with tempfile.TemporaryDirectory() as folder:
            return lab._run(own, Path(folder), Observer())

    both = in_turns(2, rank)[0]
    alone = lab.train_on_ranks(2, lab.ctx())
    assert both[0].plain() is not None
    from gcdbench.system.state_diff import difference

    assert difference(both[0].plain(), alone.plain(), "run") is None
    assert difference(both[1].plain(), alone.plain(), "run") is not None


@pytest.mark.parametrize("rule", ["last", "best-base-test"])
def test_one_rank_scores_whatever_the_selection_rule(rule, monkeypatch):
    from gcdbench.training import evaluate as selected

    scored = []
    original = selected.score
    monkeypatch.setattr(selected, "score", lambda ctx, *a: scored.append(ctx.ranks.rank) or original(ctx, *a))
    lab = lab_of("simgcd")
    settings = {"eval.every": 1, "train.epochs": 2, "eval.selection": rule}
    lab.train_on_ranks(2, lab.ctx(settings=settings))
    assert scored == [0] * len(scored)
    assert len(scored) >= 2


def test_a_method_that_draws_inside_its_tail_is_refused(monkeypatch):
    """Dropout there falls differently on every rank: what comes after would not be the same on all of them."""
    from gcdbench.backbone.tail import Tail
    from gcdbench.errors import PluginError

    lab = lab_of("rlcd")
    ctx = space_of(lab, "fp32")
    tail = Tail.train

    def with_dropout(self, mode=True):
        self.norm.drop_prob = 0.1  # as timm's blocks have it
        return tail(self, mode)

    with monkeypatch.context() as patch:
        patch.setattr(Tail, "train", with_dropout)
        with pytest.raises(PluginError, match="drops at random"):
            lab.train_on_ranks(2, ctx)
    original = Tail.forward

    def dropping(self, tokens, extra=None):
        if self.training:
            torch.rand(len(tokens))
        return original(self, tokens, extra)

    monkeypatch.setattr(Tail, "forward", dropping)
    with pytest.raises(PluginError, match="random numbers that depend on how rows are shared"):
        lab.train_on_ranks(2, space_of(lab, "fp32", **{"train.batch_size": UNEVEN}))


def test_batches_smaller_than_the_number_of_ranks_are_refused():
    from gcdbench.errors import UsageError

    lab = lab_of("rlcd")

    def rank(ranks):

        ctx = lab.usual
        small = dataclasses.replace(
            ctx.resolved,
            config=dataclasses.replace(ctx.config, train=dataclasses.replace(ctx.config.train, batch_size=1)),
        )
        shared = SharedResources(dataclasses.replace(ctx.environment, ranks=ranks))
        prepare_run(ctx.asked, small, shared)

    with pytest.raises(UsageError, match="too small for 2 processes"):
        in_turns(2, rank)
