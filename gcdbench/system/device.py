"""Where and in which precision a run computes."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from gcdbench.errors import UsageError
from gcdbench.system.parallel.spawn import gpu_number, launched

_TYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": None}


@dataclass(frozen=True)
class Compute:
    """A device with a precision."""

    device: torch.device
    precision: str

    def __post_init__(self) -> None:
        if self.precision == "fp64" and self.device.type == "mps":
            raise UsageError("This device has no double precision: use --device cpu with --precision fp64.")

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights and of tokens."""
        return torch.float64 if self.precision == "fp64" else torch.float32

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
        """Forget the peak of earlier runs in this process, where that is possible."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts again from here

    def peak_memory(self) -> int:
        """Largest memory in use, in bytes: on the device for CUDA, else of the process.

        Since the run began where that can be known (CUDA, Linux), else since the process began; 0 if unknown.
        """
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        with suppress(OSError, StopIteration):
            lines = Path("/proc/self/status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
        import sys

        if sys.platform == "win32":
            return 0
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def free_memory() -> int | None:
    """Main memory that is free, in bytes; None where the system does not say."""
    with suppress(OSError, StopIteration, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
    return None


def choose_device(asked: str) -> torch.device:
    """The device asked for, or the best one there is."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if launched() and asked in ("auto", "cuda") and cuda:  # by number: threads have a current device of their own
        return torch.device("cuda", gpu_number(torch.cuda.device_count()))
    if launched() and asked == "auto":
        return torch.device("cpu")
    if asked == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    if (asked == "cuda" and not cuda) or (asked == "mps" and not mps):
        raise UsageError(f"--device {asked} was asked for, but torch finds no such device here; use auto or cpu.")
    return torch.device(asked)
