"""The gather in the tail: rows in their order, gradients as one process has them, bytes that patches do not change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gcdbench.errors import DataError, GcdbenchError, PluginError, RankLost
from gcdbench.system.parallel.communicator import ALONE
from gcdbench.system.parallel.gather import shared_batch, whole_batch
from gcdbench.testing.turns import in_turns
from tests.support.tiny import batch_of, tiny_task

SIZES = (2, 3, 5)


def share(x, ranks, views=2):
    """This rank's rows of every view of a view-major tensor."""
    return torch.cat([view[ranks.rank :: ranks.size] for view in x.chunk(views)])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [5, 6, 7, 12])
@pytest.mark.parametrize("views", [1, 2, 3])
def test_rows_come_back_in_their_order(size, rows, views):
    x = torch.arange(views * rows * 2.0).view(views * rows, 2)

    def rank(ranks):
        with shared_batch(ranks, rows):
            return whole_batch(share(x, ranks, views))

    for found in in_turns(size, rank):
        assert torch.equal(found, x)


@pytest.mark.parametrize("size", SIZES)
def test_averaged_gradients_are_those_of_one_process(size):
    torch.manual_seed(0)
    x = torch.randn(2 * 11, 4, dtype=torch.float64)
    before, after = (nn.Linear(4, 4).double() for _ in range(2))

    def loss(features):
        """Every row depends on every other one, and `before` is used before and after the gather."""
        z = after(features) + before(features)
        return torch.logsumexp(z @ z.T, dim=1).mean()

    loss(before(x)).backward()
    wanted = [p.grad.clone() for p in (*before.parameters(), *after.parameters())]

    def rank(ranks):
        one, two = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
        one.load_state_dict(before.state_dict())
        two.load_state_dict(after.state_dict())
        with shared_batch(ranks, 11):
            features = whole_batch(one(share(x, ranks)))
        z = two(features) + one(features)
        torch.logsumexp(z @ z.T, dim=1).mean().backward()
        grads = [p.grad for p in (*one.parameters(), *two.parameters())]
        ranks.average(grads)
        return grads

    for found in in_turns(size, rank):
        for one, two in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_nothing_happens_outside_a_step_and_in_one_process():
    x = torch.randn(4, 3)
    assert whole_batch(x) is x
    with shared_batch(ALONE, 2):
        assert whole_batch(x) is x


def test_half_a_share_is_refused_with_a_sentence():
    def rank(ranks):
        with shared_batch(ranks, 8):
            whole_batch(torch.zeros(3, 2))

    with pytest.raises(PluginError, match=r"share of 4 rows.*whole views to the tail"):
        in_turns(2, rank)


@pytest.mark.parametrize("extra", [0, 1])
def test_bytes_do_not_depend_on_the_number_of_patches(extra):
    tail = tiny_task().backbone.tail(extra_tokens=extra)
    token = torch.zeros(extra, 24) if extra else None
    seen = {}
    for patches in (5, 50):
        tokens = torch.randn(2 * 12, patches, 24)

        def rank(ranks, tokens=tokens):
            with shared_batch(ranks, 12), torch.no_grad():
                out = tail(share(tokens, ranks), token)
            assert out.shape == (24, 1 + extra, 24)
            return ranks.traffic["gathered"]

        seen[patches] = in_turns(2, rank)
    assert seen[5] == seen[50] == [2 * 12 * (1 + extra) * 24 * 4] * 2


def test_a_tail_reads_the_whole_batch_from_shares_of_it():
    task, batch = tiny_task(), batch_of()
    tail = task.backbone.tail()
    wanted = tail(batch.tokens)

    def rank(ranks):
        with shared_batch(ranks, 12):
            return tail(share(batch.tokens, ranks))

    for found in in_turns(3, rank):
        torch.testing.assert_close(found, wanted)


def test_rows_of_ranks_with_different_numbers_of_them_are_joined():
    parts = [torch.arange(6.0).view(3, 2), None, torch.full((1, 2), 9.0)]
    found = in_turns(3, lambda ranks: ranks.concatenate(parts[ranks.rank]))
    for one in found:
        assert torch.equal(one, torch.cat([parts[0], parts[2]]))


def test_what_one_rank_finds_is_what_all_have_and_its_fault_the_fault_of_all():
    assert in_turns(3, lambda ranks: ranks.from_first(lambda: {"a": ranks.rank})) == [{"a": 0}] * 3
    seen = []

    def rank(ranks):
        try:
            ranks.from_first(lambda: 1 / 0)
        except Exception as fault:
            seen.append(type(fault))

    in_turns(2, rank)
    assert set(seen) == {ZeroDivisionError, GcdbenchError}


def test_what_cannot_be_sent_is_told_on_all_ranks():
    """Ranks in turns hand over what real ones would: on the host, and plain."""
    found = in_turns(2, lambda ranks: ranks.from_first(lambda: [torch.arange(3), "a", {"b": 2.0}]))
    assert torch.equal(found[1][0], torch.arange(3))
    assert found[0][0] is not found[1][0]
    told = []

    def rank(ranks):
        try:
            ranks.from_first(lambda: object())
        except PluginError as fault:
            told.append(str(fault))

    in_turns(2, rank)
    assert len(told) == 2
    assert all("cannot be sent" in text for text in told)


@pytest.mark.parametrize("where", ["concatenate", "from_first", "largest", "settle"])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_fault_meets_the_others_wherever_they_are(where, failing):
    """One rank fails before it comes to where the other waits; both end with its reason, and can continue."""
    calls = {
        "concatenate": lambda ranks: ranks.concatenate(torch.zeros(2, 3)),
        "from_first": lambda ranks: ranks.from_first(lambda: 1),
        "largest": lambda ranks: ranks.largest([1, 2]),
        "settle": lambda ranks: ranks.settle(None),
    }

    def rank(ranks):
        def action():
            if ranks.rank == failing:
                raise DataError("the cat sat on it")
            calls[where](ranks)

        try:
            with ranks.agreeing():
                action()
        except DataError as fault:
            return f"{fault} {fault.exit_code}", ranks.largest([ranks.rank])
        return None

    for said, after in in_turns(2, rank):
        assert "the cat sat on it" in said
        assert said.endswith("4")
        assert after == [1]


def test_ranks_that_have_sent_different_numbers_of_tensors_do_not_go_on():
    """On GPUs a message only queues: one that nobody answers would meet the next one."""

    def rank(ranks):
        if ranks.rank == 0:
            ranks.messages += 1
        with ranks.agreeing():
            assert ranks.rank == 0, "one fails"

    with pytest.raises(RankLost, match="has failed alone"):
        in_turns(2, rank)


def test_a_rank_that_leaves_is_missed():
    def rank(ranks):
        if ranks.rank == 1:
            return None
        return ranks.largest([1])

    with pytest.raises(RankLost):
        in_turns(2, rank)


def test_a_fault_of_one_rank_is_told_to_the_others():
    def rank(ranks):
        try:
            ranks.settle(PluginError("no") if ranks.rank == 1 else None)
        except GcdbenchError as fault:
            return str(fault)
        return ""

    assert "no" in in_turns(3, rank)[0]
