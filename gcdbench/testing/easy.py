"""A small, easy dataset for the conformance kit: six of the embedded digits, half of three of them labelled.

Which rows are labelled is fixed by their place, not by their labels, so that hidden labels can be shuffled without
changing anything a method may see. The test rows are the images of some unlabelled training rows, under other row
numbers: an inductive method must say the same of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gcdbench.contracts import ClassSplit, Index, IntArray
from gcdbench.data.datasets.digits import Digits

DIGITS = (0, 1, 4, 2, 6, 7)
"""Base classes first."""
NUM_BASE = 3
PER_CLASS = 30
TWINS = slice(1, None, 3)
"""Which of the unlabelled rows are the test rows."""


def _by_class() -> IntArray:
    """Rows of thirty images of each digit, digit by digit."""
    labels = Digits(Path("."))._data[1]
    return np.concatenate([np.flatnonzero(labels == digit)[:PER_CLASS] for digit in DIGITS])


class EasyDigits(Digits):
    """Thirty images of each of six digits, in random order."""

    expected = None  # type: ignore[assignment]

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._rows = np.random.default_rng(0).permutation(_by_class())

    @cached_property
    def true(self) -> IntArray:
        """The true class of each row, numbered as in `DIGITS`."""
        number = np.full(10, -1, dtype=np.int64)
        number[list(DIGITS)] = np.arange(len(DIGITS))
        found: IntArray = number[self._data[1][self._rows]]
        return found

    @cached_property
    def labelled(self) -> NDArray[np.bool_]:
        """Every second image of the base classes."""
        found = np.zeros(len(self._rows), dtype=bool)
        for cls in range(NUM_BASE):
            found[np.flatnonzero(self.true == cls)[::2]] = True
        return found

    def labels(self) -> IntArray:
        """What the index says."""
        return self.true

    def _of(self, part: str) -> IntArray:
        """Places of the part's rows."""
        places = np.arange(len(self._rows))
        return places if part == "train" else np.flatnonzero(~self.labelled)[TWINS]

    def index(self, part: str) -> Index:
        """Rows of a part."""
        places = self._of(part)
        items = tuple(f"{part}:{place}" for place in places)
        return Index(items, self.labels()[places], tuple(str(digit) for digit in DIGITS))

    def image(self, part: str, row: int) -> Image.Image:
        """The grey image as RGB."""
        return super().image(part, int(self._rows[self._of(part)[row]]))

    def class_split(self) -> ClassSplit:
        """The first three are base."""
        return ClassSplit(tuple(range(NUM_BASE)), tuple(range(NUM_BASE, len(DIGITS))))

    def labelled_rows(self, index: Index, base: Sequence[int], ratio: float) -> IntArray:
        """Fixed by place."""
        return np.flatnonzero(self.labelled)


class ShuffledDigits(EasyDigits):
    """The same images and visible labels; the hidden labels are shuffled among each other."""

    def labels(self) -> IntArray:
        """Wrong where no one may look."""
        hidden = np.flatnonzero(~self.labelled)
        wrong = self.true.copy()
        wrong[hidden] = self.true[np.random.default_rng(1).permutation(hidden)]
        return wrong


class SortedDigits(EasyDigits):
    """The same images sorted by class, as most data sets are on the disk."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._rows = _by_class()
