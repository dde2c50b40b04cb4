"""Images of a part of a dataset, resized once per reading and kept in memory where they fit."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gcdbench.contracts import Dataset
from gcdbench.errors import DataError

CACHE_BYTES = 1 << 30
"""Resized images are kept if all of them fit into this."""


MAX_RATIO = 100
"""Longer side over shorter side of an image; beyond it, resizing the shorter side up would fill the memory."""


def resize_shorter(image: Image.Image, side: int) -> Image.Image:
    """The shorter side becomes ``side`` (bicubic), the other keeps the aspect ratio, rounded down."""
    width, height = image.size
    if min(width, height) == side:
        return image
    if width <= height:
        size = (side, int(side * height / width))
    else:
        size = (int(side * width / height), side)
    return image.resize(size, Image.Resampling.BICUBIC)


class ResizedImages:
    """Row number to a (3, height, width) uint8 tensor whose shorter side is ``resize``."""

    def __init__(self, dataset: Dataset, part: str, resize: int, cache_bytes: int = CACHE_BYTES) -> None:
        self.dataset = dataset
        self.part = part
        self.resize = resize
        self.length = len(dataset.index(part))
        # Aspect ratios are unknown before decoding; square images are the usual lower bound.
        self.fits = 3 * resize * resize * self.length <= cache_bytes
        self._cache: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, row: int) -> Tensor:
        kept = self._cache.get(row)
        if kept is not None:
            return kept
        image = self.dataset.image(self.part, row)
        if max(image.size) > MAX_RATIO * min(image.size):
            name = self.dataset.index(self.part).items[row]
            raise DataError(f"The image {name} is {image.size[0]} x {image.size[1]} pixels: too long and thin to use.")
        image = resize_shorter(image, self.resize)
        tensor = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).contiguous()
        if self.fits:
            self._cache[row] = tensor
        return tensor
