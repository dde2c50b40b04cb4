"""Faults of plugins are reported as such, with the plugin and the function that failed."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gcdbench.errors import BadImage, GcdbenchError, PluginError, TrainingError
from gcdbench.system.debugging import look_at, raised_at
from gcdbench.system.files import cannot_write

_NO_MEMORY = (
    *("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory"),
    "can't start new thread",
)
"""How those say it that raise a plain RuntimeError (the allocator of CPU tensors, a limit on memory for threads)."""


def out_of_memory(fault: BaseException) -> bool:
    """Whether memory ran out, of whichever device."""
    if isinstance(fault, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(fault, RuntimeError) and any(words in str(fault).lower() for words in _NO_MEMORY)


def memory_error(where: str) -> TrainingError:
    """The error for memory that ran out outside the trunk, with what to lower."""
    return TrainingError(
        f"Out of memory in {where}. Lower train.batch_size, eval.batch_size or train.micro_batch, "
        "use --precision bf16, or train fewer runs together (--lanes)."
    )


@contextmanager
def plugin_call(name: str, hook: str, kind: str = "method", passes: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn whatever a plugin raises inside into a PluginError; out of memory is reported as what it is.

    ``passes`` are exceptions that the caller handles itself.
    """
    try:
        yield
    except GcdbenchError:
        raise
    except Exception as fault:
        if out_of_memory(fault):
            raise memory_error(f"{hook} of '{name}'") from fault
        if isinstance(fault, passes):
            raise
        look_at(fault)
        where = raised_at(fault)
        raise PluginError(f"The {kind} '{name}' failed in {hook}: {type(fault).__name__}: {fault}{where}") from fault
    except SystemExit as fault:  # a plugin does not decide that the program ends
        raise PluginError(f"The {kind} '{name}' called sys.exit in {hook} ({fault}).") from fault


def as_user_error(fault: Exception, name: str) -> GcdbenchError:
    """Whatever ended a run, as an error for a person; the run's log has the details."""
    if isinstance(fault, BadImage):
        return BadImage(f"{fault} Fix or remove it, or leave such images out with --on-bad-image skip.")
    if isinstance(fault, GcdbenchError):
        return fault
    if isinstance(fault, OSError):
        return cannot_write(fault, f"The run of '{name}'")
    if out_of_memory(fault):
        return memory_error(f"the run of '{name}'")
    look_at(fault)
    return PluginError(f"The run of '{name}' failed: {type(fault).__name__}: {fault}{raised_at(fault)}")


def forget_frames(fault: BaseException | None) -> None:
    """Let go of everything that an error's traceback holds: tails, losses and batches of the run that failed."""
    while fault is not None:
        traceback.clear_frames(fault.__traceback__)
        fault.__traceback__ = None
        fault = fault.__cause__ or fault.__context__
