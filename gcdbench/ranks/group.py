"""The ranks of a run and everything they say to each other. One process alone says nothing and pays nothing."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gcdbench import errors
from gcdbench.errors import GcdbenchError, RankLost
from gcdbench.ranks.watch import Watch

Value = TypeVar("Value")

PATIENCE = 20.0
"""Seconds a rank that has failed waits for the others to fail as well; then it ends, and they with it."""


@dataclass(eq=False)
class Ranks:
    """This process among those of the run.

    Calls that talk to others must be made by all ranks, in the same order. Small things of the host go through
    ``control`` (gloo, patient); tensors through the default group (NCCL on GPUs, gloo on CPUs).
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where tensors of the default group live."""
    control: Any = None
    watch: Watch | None = None
    traffic: Counter[str] = field(default_factory=Counter)
    """Bytes so far: `gathered` (read-outs and features that every rank has in the end), `averaged` (gradients)."""

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes, shows and decides."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self.size == 1

    def share(self, rows: int) -> int:
        """How many of so many rows are this rank's: rows rank, rank + size, rank + 2 size, ..."""
        return len(range(self.rank, rows, self.size))

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """What goes wrong between ranks is told as such, with the one that is missing if it is known by now."""
        try:
            yield
        except RuntimeError as fault:
            why = None if self.watch is None else self.watch.why(seconds=5.0)
            first = (str(fault).strip().splitlines() or [type(fault).__name__])[0]
            raise RankLost(why or f"The processes of this run have lost each other ({first}).") from fault

    # ------------------------------------------------------------------------------------------- tensors

    def gather(self, local: Tensor) -> Tensor:
        """(size, ...) what each rank gives, in the order of ranks; shapes and types must be equal."""
        if self.alone:
            return local[None]
        local = local.contiguous()
        out = torch.empty((self.size, *local.shape), dtype=local.dtype, device=local.device)
        self.traffic["gathered"] += out.numel() * out.element_size()
        if not local.numel():
            return out
        with self._talking():  # as bytes, which every backend can send, whatever the type
            _all_gather(_bytes(out), _bytes(local))
        return out

    def concatenate(self, local: Tensor | None) -> Tensor:
        """The rows of all ranks, rank after rank, in one tensor; None where a rank has none."""
        if self.alone:
            assert local is not None
            return local
        shape = [] if local is None else list(local.shape)
        kind = -1 if local is None else _KINDS.index(local.dtype)
        heads = self._numbers([len(shape), kind, *shape, *[0] * (6 - len(shape))])
        known = next(head for head in heads if head[1] >= 0)
        tail, dtype = known[3 : 2 + known[0]], _KINDS[known[1]]
        rows = [head[2] if head[1] >= 0 else 0 for head in heads]
        padded = torch.zeros((max(rows), *tail), dtype=dtype, device=self.device)
        if local is not None:
            padded[: len(local)] = local
        parts = self.gather(padded)
        return torch.cat([part[:count] for part, count in zip(parts, rows, strict=True)])

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each by its mean over ranks: one message per type of number."""
        if self.alone:
            return
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            own = [t for t in tensors if t.dtype == dtype]
            flat = torch.cat([t.reshape(-1) for t in own])
            self.traffic["averaged"] += flat.numel() * flat.element_size()
            with self._talking():
                dist.all_reduce(flat)
            flat /= self.size
            for tensor, part in zip(own, flat.split([t.numel() for t in own]), strict=True):
                tensor.copy_(part.view_as(tensor))

    # ------------------------------------------------------------------------------- small things of the host

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest of each number over all ranks."""
        if self.alone:
            return list(numbers)
        found = torch.tensor(numbers, dtype=torch.int64)
        with self._talking():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self.control)
        return found.tolist()

    def _numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of each rank."""
        own = torch.tensor(numbers, dtype=torch.int64)
        found = [torch.empty_like(own) for _ in range(self.size)]
        with self._talking():
            dist.all_gather(found, own, group=self.control)
        return [numbers.tolist() for numbers in found]

    def send(self, value: Any, source: int = 0) -> Any:
        """What one rank has, on all ranks: plain data and tensors, read without executing anything."""
        if self.alone:
            return value
        content = b""
        if self.rank == source:
            stream = io.BytesIO()
            torch.save(value, stream)
            content = stream.getvalue()
        with self._talking():
            length = torch.tensor([len(content)])
            dist.broadcast(length, source, group=self.control)
            message = torch.empty(int(length), dtype=torch.uint8)
            if self.rank == source:
                message = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            dist.broadcast(message, source, group=self.control)
        if self.rank == source:
            return value
        return torch.load(io.BytesIO(message.numpy().tobytes()), map_location="cpu", weights_only=True)

    def from_first(self, action: Callable[[], Value]) -> Value:
        """What the first rank finds; its fault is the fault of all."""
        if self.alone:
            return action()
        if not self.first:
            found = self.send(None)
            if "fault" in found:
                raise error_like(*found["fault"])
            return found["value"]
        try:
            value = action()
        except Exception as fault:
            self.send({"fault": described(fault)})
            raise
        self.send({"value": value})
        return value

    def settle(self, fault: Exception | None) -> None:
        """Where each rank has done its part: if one of them failed, those that did not raise its fault.

        A rank that failed where others need it for a message cannot be waited for: after a while it ends.
        """
        if self.alone:
            return
        if fault is None:
            failed = [bool(flags[0]) for flags in self._numbers([0])]
        else:
            assert self.watch is not None
            with self.watch.deadline(PATIENCE, str(fault), _code(fault)):
                failed = [bool(flags[0]) for flags in self._numbers([1])]
        if not any(failed):
            return
        source = failed.index(True)
        name, text = self.send(described(fault) if self.rank == source and fault else ["", ""], source)
        if fault is None:
            raise error_like(name, f"{text} (Rank {source} of {self.size}.)")

    def close(self, code: int = 0, sentence: str = "") -> None:
        """This rank ends; the others must know whether that is well."""
        if self.watch is not None:
            self.watch.close(code, sentence)


_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""One function under its newer and its older name."""

ALONE = Ranks()
"""One process."""

_FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
_KINDS = [*_FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def described(fault: Exception) -> list[str]:
    """A fault as it is sent to another rank: its kind and its sentence."""
    known = isinstance(fault, GcdbenchError)
    return [type(fault).__name__, str(fault) if known else f"{type(fault).__name__}: {fault}"]


def _code(fault: Exception) -> int:
    return fault.exit_code if isinstance(fault, GcdbenchError) else 1


def error_like(name: str, text: str) -> GcdbenchError:
    """An error like that of another rank."""
    kind = getattr(errors, name, GcdbenchError)
    return kind(text) if isinstance(kind, type) and issubclass(kind, GcdbenchError) else GcdbenchError(text)
