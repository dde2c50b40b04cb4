"""Checkpoints: written atomically at every epoch's end, read back without executing anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gcdbench.errors import GcdbenchError
from gcdbench.files import write_atomically

FILE = "checkpoint/last.pt"
KEYS = {"stage", "epoch", "lane", "selected"}


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the run's checkpoint."""
    write_atomically(folder / FILE, lambda stream: torch.save(state, stream))


def load(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """The run's checkpoint, or None if it has none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        if not isinstance(state, dict) or not state.keys() >= KEYS:
            raise ValueError("it is no checkpoint of a run")
        return state
    except Exception as fault:  # a damaged file can raise almost anything
        first = (str(fault).splitlines() or [type(fault).__name__])[0]
        raise GcdbenchError(
            f"The checkpoint {path} cannot be read ({first}). Delete it or use --force to start the run again."
        ) from fault
