"""Faults of plugins are told as such, with the plugin and the function that failed."""

from __future__ import annotations

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
