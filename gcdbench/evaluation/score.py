"""Scores of predictions that another program wrote."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.contracts import IntArray
from gcdbench.errors import DataError, UsageError
from gcdbench.evaluation.information import ari, nmi
from gcdbench.system.files import not_a_file, read_json
from gcdbench.toolbox import cluster_accuracy

MAX_LABEL = 10_000
"""Tables grow with the square of the largest label."""


def read_labels(path: Path) -> tuple[IntArray, IntArray, int]:
    """`y_true`, `y_pred` and `num_base` of an .npz file, checked."""
    odd = not_a_file(path)
    if odd is not None:
        raise DataError(f"The file {path} {odd}.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            own = "cluster" in archive.files and "y_pred" not in archive.files
            names = ("target", "cluster") if own else ("y_true", "y_pred", "num_base")
            missing = [n for n in names if n not in archive.files]
            if missing and own:
                raise UsageError(f"{path} has no array 'target': the true classes of its rows are not known.")
            if missing:
                raise UsageError(f"{path} has no array '{missing[0]}'; it needs y_true, y_pred and num_base.")
            y_true, y_pred = (_labels(archive[n], n, path) for n in names[:2])
            num_base = np.asarray(_recorded_base(path) if own else archive["num_base"])
    except (UsageError, DataError):
        raise
    except Exception as fault:  # a damaged archive can raise almost anything, and numpy would advise to trust it
        raise DataError(f"The file {path} is not an .npz file of plain arrays ({type(fault).__name__}).") from fault
    if num_base.size != 1 or not np.issubdtype(num_base.dtype, np.integer) or num_base.min() < 0:
        raise UsageError(f"num_base in {path} must be one whole number, not negative.")
    if y_true.shape != y_pred.shape:
        raise UsageError(f"{path}: y_true has {len(y_true)} rows and y_pred {len(y_pred)}; they must agree.")
    if not len(y_true):
        raise UsageError(f"{path} has no rows.")
    return y_true, y_pred, int(num_base.reshape(()))


def _recorded_base(path: Path) -> int:
    """The number of base classes of a run whose predictions these are: the record beside them has it."""
    try:
        return int(read_json(path.parent / "record.json")["data"]["base_classes"])
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise DataError(
            f"{path} holds the predictions of a run, but record.json beside it, which says how many classes are base, "
            f"cannot be read ({type(fault).__name__})."
        ) from fault


def _labels(values: np.ndarray, name: str, path: Path) -> IntArray:
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise UsageError(f"{name} in {path} must be a list of whole numbers, not {values.dtype} {values.shape}.")
    if len(values) and values.min() < 0:
        raise UsageError(f"{name} in {path} has a negative label.")
    if len(values) and values.max() >= MAX_LABEL:
        raise UsageError(
            f"{name} in {path} has the label {values.max()}; labels are numbers from 0 to {MAX_LABEL - 1}."
        )
    return values.astype(np.int64)


def score_file(path: Path) -> dict[str, Any]:
    """All scores as fractions; None where there is nothing to count."""
    y_true, y_pred, num_base = read_labels(path)
    result: dict[str, Any] = {}
    for name in ("v1", "v2", "v2b"):
        triple = getattr(cluster_accuracy, name)(y_true, y_pred, num_base)
        result[name] = {k: None if math.isnan(v) else v for k, v in triple._asdict().items()}
    return {**result, "nmi": nmi(y_true, y_pred), "ari": ari(y_true, y_pred)}
