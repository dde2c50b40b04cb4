"""Numbers recorded from public code: a plugin's own fixtures, or other recordings of the same names."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

Arrays = dict[str, np.ndarray]


def recorded(test_file: str, name: str) -> Arrays:
    """The arrays of NAME.npz in the folder that GCDBENCH_GOLDEN names, or in `golden/` beside the test."""
    folder = Path(os.environ.get("GCDBENCH_GOLDEN") or Path(test_file).parent / "golden")
    with np.load(folder / f"{name}.npz", allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def tensor(array: np.ndarray, grad: bool = False) -> torch.Tensor:
    """As a tensor of its own; float16 and less become float32."""
    found = torch.from_numpy(np.array(array))
    found = found.float() if found.dtype == torch.float16 else found
    return found.requires_grad_() if grad else found


def close(found: torch.Tensor | float, expected: np.ndarray | float, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Equal within the tolerance that the recording states."""
    value = found.detach().numpy() if isinstance(found, torch.Tensor) else found
    np.testing.assert_allclose(value, expected, rtol=rtol, atol=atol)
