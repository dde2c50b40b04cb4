"""What the ranks of a run agree on at the end of each epoch."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from gcdbench.errors import PluginError
from gcdbench.system.parallel.communicator import Communicator

if TYPE_CHECKING:
    from gcdbench.training.lane import Lane

NOTE = "The processes of this run round differently: at ends of epochs all take the first one's weights."


def agree(lane: Lane) -> None:
    """Ranks that round differently (other processors) drift apart in the last bits: all take the first one's state.

    Random numbers that differ mean that a method draws some within the shared part of its network.
    """
    ranks, trainer = lane.ctx.ranks, lane.trainer
    if ranks.alone:
        return
    drawn = [zlib.crc32(lane.random.get_state().numpy().tobytes()), lane.ambient.digest()]
    same = [high == -low for high, low in zip(*_extremes(ranks, [*drawn, trainer.digest()]), strict=True)]
    if not all(same[:-1]):
        raise PluginError(
            f"The method '{trainer.name}' draws random numbers that depend on how rows are shared among processes "
            "(dropout inside the tail?): train it in one process."
        )
    if not same[-1]:
        trainer.restore(ranks.send(trainer.state()))
        if NOTE not in lane.ctx.notes.warnings:
            lane.note(NOTE)


def _extremes(ranks: Communicator, marks: list[int]) -> tuple[list[int], list[int]]:
    """The largest of each mark over all ranks, and minus the smallest."""
    found = ranks.largest([*marks, *(-mark for mark in marks)])
    return found[: len(marks)], found[len(marks) :]
