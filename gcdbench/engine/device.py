"""Where and in which precision a run computes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from gcdbench.errors import UsageError

DEVICES = ("auto", "cpu", "cuda", "mps")
_TYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Compute:
    """A device with a precision."""

    device: torch.device
    precision: str

    def autocast(self) -> AbstractContextManager[None]:
        """Context for trunk and tail; losses leave it by themselves."""
        kind = _TYPES[self.precision]
        return torch.autocast(self.device.type, dtype=kind, enabled=kind is not None)

    def scaler(self) -> torch.amp.GradScaler:
        """Loss scaling; does nothing unless the precision is fp16."""
        return torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")

    @property
    def pins(self) -> bool:
        """Whether host memory should be pinned for asynchronous copies."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Until the device has done what was queued; for measuring time."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def describe(self) -> str:
        """Name for the record."""
        if self.device.type == "cuda":
            return f"cuda ({torch.cuda.get_device_name(self.device)})"
        return self.device.type

    def start_measuring(self) -> None:
        """Forget the peak of earlier runs in this process, where the device can."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_memory(self) -> int:
        """Largest memory in use, in bytes: on the device since the run began for CUDA, else of the process so far.

        0 if unknown.
        """
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        import sys

        if sys.platform == "win32":
            return 0
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def choose_device(asked: str) -> torch.device:
    """The device asked for, or the best one there is."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if asked == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    if (asked == "cuda" and not cuda) or (asked == "mps" and not mps):
        raise UsageError(f"--device {asked} was asked for, but torch finds no such device here; use auto or cpu.")
    return torch.device(asked)
