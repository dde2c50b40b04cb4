"""The embedded data set: scikit-learn's 1,797 real handwritten digits. Needs no download."""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gcdbench.config.sections import ViewConfig
from gcdbench.contracts import ClassSplit, Dataset, Expected, Index
from gcdbench.errors import DataError


class Digits(Dataset):
    """8 x 8 grey images of the digits 0-9; 0-4 are base. There is no test part."""

    name = "digits"
    title = "Digits (embedded)"
    expected = Expected(train=1_797, test=0, classes=10)
    # Mirrored digits are other digits or none, so views are small shifts only.
    views = ViewConfig(resize=18, crop=16, flip=False, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    backbone = "digits-vit"
    layout = "(nothing: the images come with scikit-learn)"

    @cached_property
    def _data(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        from sklearn.datasets import load_digits

        bunch: Any = load_digits()
        return np.round(bunch.images * (255 / 16)).astype(np.uint8), bunch.target.astype(np.int64)

    def index(self, part: str) -> Index:
        """All images in scikit-learn's order."""
        if part != "train":
            raise DataError("The embedded digits have no test part; score the unlabelled rows (eval.rows=unlabelled).")
        labels = self._data[1]
        items = tuple(f"digits:{row}" for row in range(len(labels)))
        return Index(items, labels, tuple("0123456789"))

    def image(self, part: str, row: int) -> Image.Image:
        """The grey image as RGB."""
        return Image.fromarray(self._data[0][row]).convert("RGB")

    def files_hash(self, part: str) -> str:
        """The images come with scikit-learn."""
        return f"scikit-learn {version('scikit-learn')}"

    def class_split(self) -> ClassSplit:
        """0-4 are base, 5-9 novel."""
        return ClassSplit(tuple(range(5)), tuple(range(5, 10)))
