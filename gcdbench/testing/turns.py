"""Ranks without processes: threads that take turns, one running at a time, each until it needs the others.

Everything a method does is what it would do in processes of its own, so a check takes as long as its steps. Random
numbers that belong to the process change hands with the turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from gcdbench.errors import GcdbenchError, RankLost
from gcdbench.system.parallel.communicator import Communicator, packed, unpacked
from gcdbench.system.seeding import global_state, set_global_state

Value = TypeVar("Value")


class _Table:
    """Where the ranks meet."""

    def __init__(self, size: int) -> None:
        self.turn = [threading.Semaphore(0) for _ in range(size)]
        self.given: list[dict[int, Any]] = [{} for _ in range(size)]
        """Per rank what it gave in the last rounds."""
        self.left = [False] * size


class TurnRanks(Communicator):
    """One of several ranks in one process."""

    def __init__(self, rank: int, size: int, table: _Table) -> None:
        super().__init__(rank, size)
        self._table = table
        self._round = 0

    def _give(self, value: Any) -> list[Any]:
        """What every rank gives in this round."""
        table, number = self._table, self._round
        self._round += 1
        table.given[self.rank][number] = value
        table.given[self.rank].pop(number - 2, None)  # everybody has taken it
        self._pass_on()
        if any(number not in given for given in table.given):
            raise RankLost("Another rank has ended, or asks for something else.")
        return [given[number] for given in table.given]

    def _pass_on(self) -> None:
        state = global_state()
        table = self._table
        following = (self.rank + step for step in range(1, self.size + 1))
        table.turn[next(r % self.size for r in following if not table.left[r % self.size])].release()
        table.turn[self.rank].acquire()
        set_global_state(state)

    def gather(self, local: Tensor) -> Tensor:
        """(size, ...) what each rank gives."""
        self.messages += 1
        found = self._give(local.detach().clone())
        if any(one.shape != local.shape or one.dtype != local.dtype for one in found):
            raise GcdbenchError(f"Ranks give {[tuple(one.shape) for one in found]} to be gathered.")
        self.traffic["gathered"] += sum(one.numel() * one.element_size() for one in found)
        return torch.stack(found)

    def average(self, tensors: Any) -> None:
        """Replace each by its mean over ranks."""
        self.messages += 1
        found = self._give([tensor.detach().clone() for tensor in tensors])
        self.traffic["averaged"] += sum(t.numel() * t.element_size() for t in tensors)
        for tensor, *values in zip(tensors, *found, strict=True):
            tensor.copy_(torch.stack(values).mean(0))

    def _exchange(self, own: list[int]) -> list[list[int]]:
        return self._give(list(own))

    def _pass(self, value: Any, source: int) -> Any:
        return unpacked(self._give(packed(value) if self.rank == source else None)[source])


def in_turns(size: int, action: Callable[[Communicator], Value]) -> list[Value]:
    """What ``action`` returns on each of this many ranks; the fault of the first one that fails is raised."""
    table = _Table(size)
    found: list[Any] = [None] * size
    faults: list[tuple[bool, int, BaseException]] = []
    before = global_state()
    threads_before = torch.get_num_threads()

    def work(rank: int) -> None:
        table.turn[rank].acquire()
        torch.set_num_threads(threads_before)
        set_global_state(before)
        try:
            found[rank] = action(TurnRanks(rank, size, table))
        except BaseException as fault:
            faults.append((isinstance(fault, RankLost), rank, fault))
        finally:
            table.left[rank] = True
            waiting = [r for r in range(size) if not table.left[r]]
            if waiting:
                table.turn[next((r for r in waiting if r > rank), waiting[0])].release()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    table.turn[0].release()
    for thread in threads:
        thread.join()
    set_global_state(before)
    if faults:  # one that only misses another rank is not the reason
        raise min(faults, key=lambda entry: entry[:2])[2]
    return found
