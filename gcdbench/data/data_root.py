"""Finding a dataset below the data root, and saying what is missing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gcdbench.errors import DataError

if TYPE_CHECKING:
    from gcdbench.contracts import Dataset

VARIABLE = "GCDBENCH_DATA"


def data_root(given: Path | None) -> Path:
    """The data root: the option, the environment variable, or `./data`."""
    if given is not None:
        return given
    return Path(os.environ.get(VARIABLE) or "data")


def find_folder(dataset: Dataset, candidates: Sequence[str], marker: str) -> Path:
    """The first candidate folder below the root that contains ``marker``; a DataError says what is missing."""
    for candidate in candidates:
        folder = dataset.root / candidate
        if (folder / marker).exists():
            return folder
    shown = ", ".join(str(dataset.root / c / marker) for c in candidates[:3])
    raise missing(dataset, f"found none of {shown}")


def missing(dataset: Dataset, what: str) -> DataError:
    """The error for absent data: what is missing and how to get it."""
    if dataset.archives:
        remedy = f"Run `gcdbench data fetch {dataset.name} --data-root {dataset.root}`"
    else:
        remedy = f"`gcdbench data fetch {dataset.name}` prints how to get it"
    return DataError(
        f"{dataset.title} is not complete below {dataset.root}: {what}. {remedy}, or point --data-root (or "
        f"{VARIABLE}) at the right folder; `gcdbench data layout {dataset.name}` shows the expected files."
    )
