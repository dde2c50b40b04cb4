"""Faults of plugins are told as such, with the plugin and the function that failed."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gcdbench.errors import GcdbenchError, PluginError, TrainingError


@contextmanager
def plugin_call(name: str, hook: str, kind: str = "method") -> Iterator[None]:
    """Turn whatever a plugin raises inside into a PluginError; out of memory is told as what it is."""
    try:
        yield
    except GcdbenchError:
        raise
    except torch.OutOfMemoryError as fault:
        raise TrainingError(
            f"Out of memory in {hook} of '{name}'. Lower train.batch_size or train.micro_batch, "
            "use --precision bf16, or train fewer runs together (--lanes)."
        ) from fault
    except Exception as fault:
        raise PluginError(f"The {kind} '{name}' failed in {hook}: {type(fault).__name__}: {fault}") from fault


def told(fault: Exception, name: str) -> GcdbenchError:
    """Whatever ended a run, as an error for a person; the run's log has the details."""
    if isinstance(fault, GcdbenchError):
        return fault
    if isinstance(fault, OSError):
        where = f"{fault.filename}: {fault.strerror}" if fault.filename else str(fault)
        return GcdbenchError(f"The run of '{name}' could not write or read a file: {where}.")
    return PluginError(f"The run of '{name}' failed: {type(fault).__name__}: {fault}")


def forget_frames(fault: BaseException | None) -> None:
    """Let go of everything that an error's traceback holds: tails, losses and batches of the run that failed."""
    while fault is not None:
        traceback.clear_frames(fault.__traceback__)
        fault.__traceback__ = None
        fault = fault.__cause__ or fault.__context__
