"""Helpers for tests of whole runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import gcdbench
from gcdbench.data.datasets.digits import Digits
from gcdbench.training import checkpoint

ROWS = 400
"""Digits in these tests: the same code in a quarter of the time."""
SMALL = {"method.projector_hidden": 32, "method.projector_out": 16}


def fewer_digits(patch) -> None:
    """Cut the embedded digits down to the first rows."""
    pixels, labels = Digits(Path("."))._data
    patch.setattr(Digits, "_data", (pixels[:ROWS], labels[:ROWS]))


def settings_of(method: str) -> dict:
    return SMALL if method == "simgcd" else {}


def start(tmp_path: Path, method: str = "rlcd", where: str = "runs", **more):
    values = {"epochs": 2, **more}
    return gcdbench.run(
        method,
        "digits",
        runs=tmp_path / where,
        settings={**settings_of(method), **values.pop("settings", {})},
        **values,
    )


def weights(record) -> dict[str, torch.Tensor]:
    return checkpoint.load(Path(record.dir))["lane"]["method"]


def predictions(record) -> dict[str, np.ndarray]:
    with np.load(Path(record.dir) / "predictions.npz") as file:
        return {name: file[name] for name in file.files}


def assert_same(one, two, but: tuple[str, ...] = ()):
    left, right = weights(one), weights(two)
    assert left.keys() == right.keys()
    for name in left:
        if isinstance(left[name], torch.Tensor):
            assert torch.equal(left[name], right[name]), name
        else:  # extra state
            assert left[name] == right[name], name
    a, b = predictions(one), predictions(two)
    assert all(np.array_equal(a[name], b[name]) for name in a if name not in but)
