"""From the read-outs of a rank's rows to those of the whole batch, with gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from gcdbench.errors import PluginError
from gcdbench.system.parallel.communicator import Communicator

_batch: ContextVar[tuple[Communicator, int] | None] = ContextVar("batch", default=None)
_everywhere: tuple[Communicator, int] | None = None
"""The same for threads of this process that know nothing of it: autograd's own, where parts may be computed again."""


@contextmanager
def shared_batch(ranks: Communicator, rows: int) -> Iterator[None]:
    """Inside, every rank has tokens of its share of a batch of this many rows."""
    if ranks.alone:
        yield
        return
    global _everywhere
    token = _batch.set((ranks, rows))
    before, _everywhere = _everywhere, (ranks, rows) if ranks.control is not None else _everywhere
    try:
        yield
    finally:
        _everywhere = before
        _batch.reset(token)


def sharing() -> bool:
    """Whether this is a training step on several ranks."""
    return (_batch.get() or _everywhere) is not None


def whole_batch(features: Tensor) -> Tensor:
    """Features of the views of this rank's rows, made into those of the whole batch, view-major.

    Tails do this by themselves. A method with a network of its own in place of a tail calls it on what that network
    gives. In one process, and outside a training step, it returns what it is given.
    """
    shared = _batch.get() or _everywhere
    if shared is None:
        return features
    ranks, rows = shared
    if len(features) % ranks.share(rows):
        raise PluginError(
            f"{len(features)} features were read out of a share of {ranks.share(rows)} rows. On several ranks "
            "batch.tokens holds the views of this rank's rows only: give whole views to the tail."
        )
    found: Tensor = _Whole.apply(features, ranks, rows)  # type: ignore[no-untyped-call]
    return found


class _Whole(torch.autograd.Function):
    """Gathers in the forward pass. Every rank computes the same loss from the same features, so in the backward pass
    each keeps the gradient of its own rows; times the number of ranks, because gradients are averaged afterwards."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, ranks: Communicator, rows: int) -> Tensor:
        mine, most = ranks.share(rows), -(-rows // ranks.size)
        views = len(local) // mine
        ctx.ranks, ctx.rows, ctx.views = ranks, rows, views
        own = local.reshape(views, mine, *local.shape[1:])
        if mine < most:
            own = torch.cat([own, own.new_zeros((views, 1, *local.shape[1:]))], dim=1)
        # (ranks, views, most, ...) to (views, most, ranks, ...): row i is the (i // size)-th of rank i % size.
        together = ranks.gather(own).movedim(0, 2).flatten(1, 2)[:, :rows]
        return together.reshape(views * rows, *local.shape[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        views = grad.view(ctx.views, ctx.rows, *grad.shape[1:])
        own = views[:, ctx.ranks.rank :: ctx.ranks.size] * ctx.ranks.size
        return own.flatten(0, 1), None, None
