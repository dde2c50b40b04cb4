"""Which runs can share trunk passes: those that look at the same batches through the same trunk."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from gcdbench.prepare.environment import MAX_LANES
from gcdbench.prepare.run_context import RunContext


def stream_key(ctx: RunContext) -> Hashable:
    """Equal for runs that see the same batches. Sources are shared where trunk, images and views are the same."""
    config = ctx.config
    train = config.train
    return (id(ctx.source), ctx.data.split.hash(), train.batch_size, train.sampler, config.stream_seed)


def trunk_groups(contexts: Iterable[RunContext], most: int = MAX_LANES) -> list[list[RunContext]]:
    """Runs to be trained together, at most ``most`` at a time, in the order in which they were asked for."""
    by_stream: dict[Hashable, list[RunContext]] = {}
    for ctx in contexts:
        by_stream.setdefault(stream_key(ctx), []).append(ctx)
    return [group[i : i + most] for group in by_stream.values() for i in range(0, len(group), most)]
