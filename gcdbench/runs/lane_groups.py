"""Which runs can share trunk passes: those that look at the same batches through the same trunk."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from gcdbench.prepare.run_context import Workspace

MAX_LANES = 32
"""Runs that are trained together at most, unless the user says otherwise: each keeps a tail and its optimiser."""


def stream_key(space: Workspace) -> Hashable:
    """Equal for runs that see the same batches. Sources are shared where trunk, images and views are the same."""
    config = space.config
    train = config.train
    return (id(space.source), space.data.split.hash(), train.batch_size, train.sampler, config.stream_seed)


def trunk_groups(spaces: Iterable[Workspace], most: int = MAX_LANES) -> list[list[Workspace]]:
    """Runs to be trained together, at most ``most`` at a time, in the order in which they were asked for."""
    by_stream: dict[Hashable, list[Workspace]] = {}
    for space in spaces:
        by_stream.setdefault(stream_key(space), []).append(space)
    return [group[i : i + most] for group in by_stream.values() for i in range(0, len(group), most)]
