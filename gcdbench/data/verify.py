"""Checks a dataset on disk: counts, files, and whether every image can be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gcdbench.contracts import Dataset
from gcdbench.data.images import usable
from gcdbench.errors import DataError

MAX_NAMED = 20
"""Unreadable files that are named one by one."""


@dataclass
class Verification:
    """What was found."""

    dataset: str
    root: str
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is absent but not needed for the default protocol."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(
    dataset: Dataset, sample: int | None = None, tick: Callable[[str, int, int], None] | None = None
) -> Verification:
    """Check the training part and, where it exists, the test part; ``sample`` limits the images opened."""
    result = Verification(dataset.name, str(dataset.root))
    expected = dataset.expected
    for part in ("train", "test"):
        if part == "test" and (expected is None or expected.test == 0):
            continue
        try:
            index = dataset.index(part)
        except DataError as fault:
            if part == "train":
                result.problems.append(f"train: {fault}")
            else:
                result.notes.append(f"test rows, which only eval.rows=test needs: {fault}")
            continue
        counts = np.bincount(index.labels[index.labels >= 0], minlength=len(index.class_names))
        wanted = None if expected is None else getattr(expected, part)
        result.parts[part] = {
            "rows": len(index),
            "expected_rows": wanted,
            "classes": int((counts > 0).sum()),
            "expected_classes": None if expected is None else expected.classes,
        }
        if wanted is not None and wanted != len(index):
            result.problems.append(f"{part}: {len(index):,} rows instead of {wanted:,}")
        if expected is not None and (counts > 0).sum() != expected.classes:
            result.problems.append(f"{part}: {(counts > 0).sum()} classes with images instead of {expected.classes}")
        if part == "train" and expected is not None and expected.per_class is not None:
            low, high = expected.per_class
            odd = int(((counts < low) | (counts > high)).sum())
            if odd:
                result.problems.append(f"train: {odd} classes have fewer than {low} or more than {high} images")
        _read_images(dataset, part, len(index), sample, result, tick)
    return result


def _read_images(
    dataset: Dataset,
    part: str,
    rows: int,
    sample: int | None,
    result: Verification,
    tick: Callable[[str, int, int], None] | None,
) -> None:
    chosen = range(rows)
    if sample is not None and sample < rows:
        chosen = range(0, rows, -(-rows // sample))
    bad = 0
    for done, row in enumerate(chosen, 1):
        try:
            usable(dataset, part, row)
        except DataError as fault:
            bad += 1
            if bad <= MAX_NAMED:
                result.problems.append(f"{part}: {fault}")
        if tick is not None:
            tick(part, done, len(chosen))
    if bad > MAX_NAMED:
        result.problems.append(f"{part}: {bad - MAX_NAMED} more images cannot be read")
    result.parts[part]["images_read"] = len(chosen) - bad
