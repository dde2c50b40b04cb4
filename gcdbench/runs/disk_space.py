"""How much room a run takes on the disk, and whether there is enough."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from gcdbench.data.store.store_folder import spoken_size
from gcdbench.errors import GcdbenchError
from gcdbench.prepare.run_context import RunContext, build_method
from gcdbench.system.files import free_bytes
from gcdbench.system.plugin_call import plugin_call

GENERATIONS = 3
"""Checkpoints that are there at once: the last, the one before it, and the one being written."""
PER_ROW = 64
"""Bytes that predictions take for a row besides its name, and a log for everything else, generously."""
FIXED = 1 << 20


def state_bytes(state: Any) -> int:
    """Bytes of all tensors in a nested state."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, dict):
        return sum(state_bytes(value) for value in state.values())
    if isinstance(state, list | tuple):
        return sum(state_bytes(value) for value in state)
    return 0


def run_bytes(ctx: RunContext) -> int:
    """About what a run directory takes at most, from the size of the method's weights and their momentum."""
    method = build_method(ctx)
    with plugin_call(ctx.config.method, "state_dict"):
        trained = sum(p.numel() * p.element_size() for _, p in method.trained_parameters())
        checkpoint = state_bytes(method.state_dict()) + trained
    index = ctx.data.index if ctx.config.eval.rows == "unlabelled" else ctx.data.test
    names = 0 if index is None else sum(map(len, index.items))
    return GENERATIONS * checkpoint + names + PER_ROW * len(ctx.data.index) + FIXED


def require_room(sizes: Sequence[int], folder: Path) -> None:
    """Stop before training if runs of these sizes will not fit on the disk of a folder."""
    needed, free = sum(sizes), free_bytes(folder)
    if needed > free:
        raise GcdbenchError(
            f"{len(sizes)} run{'s' if len(sizes) > 1 else ''} would take {spoken_size(needed)} for checkpoints and "
            f"predictions, but the disk of {folder} has only {spoken_size(free)} free. Free some space, or choose "
            "another folder with --runs."
        )
