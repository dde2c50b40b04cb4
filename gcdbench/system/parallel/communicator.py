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
from gcdbench.errors import GcdbenchError, PluginError, RankLost
from gcdbench.system.parallel.liveness import Watch

Value = TypeVar("Value")

PATIENCE = 20.0
"""Seconds a rank that has failed waits for the others to come and hear of it; then it ends, and they with it."""
SETTLE, LARGEST, JOIN, SEND = range(4)
"""What ranks meet for."""
_WIDTH = 8
"""Numbers that each brings to a meeting."""


@dataclass(eq=False)
class Communicator:
    """This process among those of the run.

    Calls that talk to others must be made by all ranks, in the same order. Small things of the host go through
    ``control`` (gloo, patient): each of these is a *meeting*, to which every rank brings a few numbers, so that one
    that has failed meets the others wherever they are. Tensors go through the default group (NCCL on GPUs, where a
    call only queues; gloo on CPUs).
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where tensors of the default group live."""
    control: Any = None
    watch: Watch | None = None
    traffic: Counter[str] = field(default_factory=Counter)
    """Bytes so far: `gathered` (read-outs and features that every rank has in the end), `averaged` (gradients)."""
    _settled: BaseException | None = None
    """The last fault that all ranks know of."""
    messages: int = 0
    """Tensors sent so far; ranks that have sent different numbers of them stay out of step."""

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes, shows and decides."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self.size == 1

    def share(self, rows: int) -> int:
        """How many of this many rows are this rank's: rows rank, rank + size, rank + 2 size, ..."""
        return len(range(self.rank, rows, self.size))

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """What goes wrong between ranks is reported as such, with the one that is missing if it is known by now."""
        try:
            yield
        except RuntimeError as fault:
            why = None if self.watch is None else self.watch.why(seconds=5.0)
            first = (str(fault).strip().splitlines() or [type(fault).__name__])[0]
            raise RankLost(why or f"The processes of this run lost connection to each other ({first}).") from fault

    # ------------------------------------------------------------------------------------------- tensors

    def gather(self, local: Tensor) -> Tensor:
        """(size, ...) what each rank gives, in the order of ranks; shapes and types must be equal."""
        if self.alone:
            return local[None]
        local = local.contiguous()
        out = torch.empty((self.size, *local.shape), dtype=local.dtype, device=local.device)
        self.traffic["gathered"] += out.numel() * out.element_size()
        self.messages += 1
        if not local.numel():
            return out
        # What a method has brought to the host stays there.
        group = self.control if local.device.type != self.device.type else None
        with self._talking():  # as bytes, which every backend can send, whatever the type
            _all_gather(_bytes(out), _bytes(local), group=group)
        return out

    def concatenate(self, local: Tensor | None) -> Tensor:
        """The rows of all ranks, rank after rank, in one tensor; None where a rank has none."""
        if self.alone:
            assert local is not None
            return local
        shape = [] if local is None else list(local.shape)
        kind = -1 if local is None else _KINDS.index(local.dtype)
        on_host = local is not None and local.device.type == "cpu"
        heads = self._meet(JOIN, [len(shape), kind, int(on_host), *shape])
        known = next(head for head in heads if head[1] >= 0)
        tail, dtype = known[4 : 3 + known[0]], _KINDS[known[1]]
        rows = [head[3] if head[1] >= 0 else 0 for head in heads]
        device = torch.device("cpu") if known[2] else self.device
        padded = torch.zeros((max(rows), *tail), dtype=dtype, device=device)
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
            self.messages += 1
            with self._talking():
                dist.all_reduce(flat)
            flat /= self.size
            for tensor, part in zip(own, flat.split([t.numel() for t in own]), strict=True):
                tensor.copy_(part.view_as(tensor))

    # ------------------------------------------------------------------------------- small things of the host

    def _meet(self, purpose: int, numbers: Sequence[int] = (), fault: Exception | None = None) -> list[list[int]]:
        """The numbers that each rank brings. If one brings a fault, the others raise it (as settled)."""
        own = [int(fault is not None), self.messages, purpose, *numbers]
        own += [0] * (3 + _WIDTH - len(own))
        if fault is None:
            found = self._exchange(own)
        else:
            with self._impatient(fault):
                found = self._exchange(own)
        failed = [rank for rank, head in enumerate(found) if head[0]]
        if failed:
            source = failed[0]
            words = described(fault) if fault is not None and self.rank == source else None
            name, text, code = self._pass(words, source)
            if len({head[1] for head in found}) > 1:
                raise RankLost(f"Rank {source} of {self.size} has failed alone, and the others wait for it: {text}")
            if fault is None:
                fault = self._settled = error_like(name, f"{text} (Rank {source} of {self.size}.)", int(code))
                raise fault
            self._settled = fault
        elif len({(head[1], head[2]) for head in found}) > 1:
            raise RankLost("The processes of this run are out of step: one of them has done something else.")
        return [head[3:] for head in found]

    def _exchange(self, own: list[int]) -> list[list[int]]:
        mine = torch.tensor(own, dtype=torch.int64)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with self._talking():
            dist.all_gather(found, mine, group=self.control)
        return [numbers.tolist() for numbers in found]

    @contextmanager
    def _impatient(self, fault: Exception) -> Iterator[None]:
        """Others may wait for this rank where it will never come: then it ends, and they with it."""
        if self.watch is None:
            yield
            return
        code = fault.exit_code if isinstance(fault, GcdbenchError) else 1
        with self.watch.deadline(PATIENCE, str(fault), code):
            yield

    def _pass(self, value: Any, source: int) -> Any:
        """What one rank has, on all ranks, in the form in which it arrives: on the host."""
        content = packed(value) if self.rank == source else b""
        with self._talking():
            length = torch.tensor([len(content)])
            dist.broadcast(length, source, group=self.control)
            message = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else None
            if message is None:
                message = torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(message, source, group=self.control)
        return unpacked(message.numpy().tobytes())

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest of each number over all ranks; at most eight of them."""
        if self.alone:
            return list(numbers)
        heads = self._meet(LARGEST, numbers)
        return [max(each) for each in zip(*(head[: len(numbers)] for head in heads), strict=True)]

    def send(self, value: Any) -> Any:
        """What the first rank has, on all ranks: plain data and tensors, read without executing anything."""
        if self.alone:
            return value
        fault: Exception | None = None
        if self.first:
            try:
                unpacked(packed(value))
            except Exception as found:
                first = (str(found).strip().splitlines() or [""])[0]
                fault = PluginError(f"What one process has found cannot be sent to the others: {first}")
        self._meet(SEND, fault=fault)
        if fault is not None:
            raise fault
        return self._pass(value, 0)

    def from_first(self, action: Callable[[], Value]) -> Value:
        """What the first rank finds; its fault is the fault of all."""
        if self.alone:
            return action()
        if not self.first:
            arrived: Value = self.send(None)
            return arrived
        try:
            value = action()
        except Exception as fault:
            self.settle(fault)
            raise
        sent: Value = self.send(value)
        return sent

    def settle(self, fault: Exception | None) -> None:
        """Where each rank has done its part: if one of them failed, those that did not raise its fault."""
        if not self.alone and not self.is_settled(fault):
            self._meet(SETTLE, fault=fault)

    def is_settled(self, fault: BaseException | None) -> bool:
        """Whether all ranks know of a fault, or of the one behind it."""
        while fault is not None:
            if fault is self._settled:
                return True
            fault = fault.__cause__
        return False

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """What is done inside is done on all ranks; what fails on one fails on all."""
        try:
            yield
        except RankLost:
            raise
        except Exception as fault:
            self.settle(fault)
            raise
        self.settle(None)

    def close(self, code: int = 0, sentence: str = "") -> None:
        """This rank ends; the others must know whether that is well."""
        if self.watch is not None:
            self.watch.close(code, sentence)


_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""One function under its newer and its older name."""

ALONE = Communicator()
"""One process."""

_FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
_KINDS = [*_FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def packed(value: Any) -> bytes:
    """As it is sent."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def unpacked(content: bytes) -> Any:
    """As it arrives: on the host, and nothing is executed."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def described(fault: Exception) -> list[str]:
    """A fault as it is sent to another rank: its kind, its sentence and its exit code."""
    if isinstance(fault, GcdbenchError):
        return [type(fault).__name__, str(fault), str(fault.exit_code)]
    return [type(fault).__name__, f"{type(fault).__name__}: {fault}", "1"]


def error_like(name: str, text: str, code: int = 1) -> GcdbenchError:
    """An error like that of another rank."""
    kind = getattr(errors, name, GcdbenchError)
    found = kind(text) if isinstance(kind, type) and issubclass(kind, GcdbenchError) else GcdbenchError(text)
    found.exit_code = code
    return found
