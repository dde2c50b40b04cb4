"""Floating-point operations of a training step, counted on a real batch after training."""

from __future__ import annotations

from itertools import islice

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gcdbench.contracts import Method, Progress
from gcdbench.prepare.run_context import RunContext
from gcdbench.system.seeding import fenced_rng, generator
from gcdbench.training.batches import batches, epoch_plans


def flops_per_step(ctx: RunContext, method: Method) -> dict[str, int]:
    """Operations of matrix products, attention and convolutions in one step of the method's first stage.

    The method is used up: its gradients and running statistics change, so call this when it has predicted.
    """
    stages = list(method.stages())
    if not stages:
        return {"trunk": 0, "method": 0}
    seed = ctx.config.seed
    random = generator(seed, "flops", device=ctx.compute.device)
    # In the last epoch, when terms that start late have started.
    t = Progress(stages[0].name, stages[0].epochs - 1, stages[0].epochs, 0, ctx.sampler.steps, random)
    trunk, own = FlopCounterMode(display=False), FlopCounterMode(display=False)
    method.train()
    # Plain attention: the counter does not know the fused CPU kernel, which does the same work.
    with fenced_rng(seed, "flops"), sdpa_kernel(SDPBackend.MATH):
        with trunk:
            batch = next(batches(ctx, islice(epoch_plans(ctx, stages[0], 0), 1)))[1]
        with own, torch.enable_grad():  # one block: entering the counter again would start from zero
            with ctx.compute.autocast():
                losses = method(batch, t)
            losses.total().backward()
    method.zero_grad(set_to_none=True)
    return {"trunk": trunk.get_total_flops(), "method": own.get_total_flops()}
