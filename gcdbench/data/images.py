"""Resized images of some rows, as training and evaluation read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gcdbench.contracts import Dataset
from gcdbench.errors import BadImage, DataError, PassingFault, PluginError
from gcdbench.system.files import MACHINE
from gcdbench.system.plugin_call import plugin_call

KEEP_BYTES = 64 << 20
"""Images of a set that is smaller than this are kept in memory instead of in a store."""
MAX_RATIO = 100
"""Longer side over shorter side of an image; beyond it, resizing the shorter side up would fill the memory."""


@dataclass(frozen=True)
class Pixels:
    """Images one after another in one buffer, line by line, the three colours of a pixel side by side."""

    flat: Tensor
    """(pixels x 3,) uint8; may hold other images as well, and is only ever read."""
    start: NDArray[np.int64]
    """(rows,) number of each image's first pixel."""
    height: NDArray[np.int64]
    width: NDArray[np.int64]

    def compact(self) -> Pixels:
        """The same in a buffer that holds nothing else, to be copied to another device."""
        ends = np.cumsum(self.height * self.width)
        starts = ends - self.height * self.width
        flat = torch.empty(3 * int(ends[-1]), dtype=torch.uint8)
        for old, new, end in zip(self.start.tolist(), starts.tolist(), ends.tolist(), strict=True):
            flat[3 * new : 3 * end] = self.flat[3 * old : 3 * (old + end - new)]
        return Pixels(flat, starts, self.height, self.width)


class Images(Protocol):
    """One part of a dataset at its resize size."""

    def __len__(self) -> int: ...

    def gather(self, rows: NDArray[np.int64]) -> Pixels:
        """The images of some rows; may be called from several threads at once."""
        ...


@dataclass(frozen=True)
class NumberedImages:
    """The same images under other numbers."""

    images: Images
    order: NDArray[np.int64]
    """The row behind each number."""

    def __len__(self) -> int:
        return len(self.order)

    def gather(self, rows: NDArray[np.int64]) -> Pixels:
        """The images with these numbers."""
        return self.images.gather(self.order[rows])


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


def usable(dataset: Dataset, part: str, row: int) -> Image.Image:
    """A row's image, decoded, or the error that says why it cannot be used."""
    name = dataset.index(part).items[row]
    try:
        with plugin_call(dataset.name, "image", kind="dataset", passes=(OSError,)):
            image = dataset.image(part, row)
            size = image.size
            image.load()
    except OSError as fault:  # what PIL raises for most files that it cannot read
        raise unreadable_image(name, fault) from fault
    if image.mode != "RGB":
        raise PluginError(f"The dataset '{dataset.name}' gives {name} as a {image.mode} image; RGB is needed.")
    if max(size) > MAX_RATIO * min(size):
        raise BadImage(f"The image {name} is {size[0]} x {size[1]} pixels: too long and thin to use.")
    return image


def resized(dataset: Dataset, part: str, row: int, side: int) -> NDArray[np.uint8]:
    """(height, width, 3): a row's image, decoded and resized."""
    return np.asarray(resize_shorter(usable(dataset, part, row), side))


class DirectImages:
    """Decodes and resizes whenever asked; a small set is kept in memory from then on."""

    def __init__(self, dataset: Dataset, part: str, resize: int, keep_bytes: int | None = None) -> None:
        self.dataset = dataset
        self.part = part
        self.resize = resize
        self.length = len(dataset.index(part))
        # Aspect ratios are unknown before decoding; square images are the usual lower bound.
        self.small = 3 * resize * resize * self.length <= (KEEP_BYTES if keep_bytes is None else keep_bytes)
        self._kept: dict[int, NDArray[np.uint8]] = {}

    def __len__(self) -> int:
        return self.length

    def _array(self, row: int) -> NDArray[np.uint8]:
        kept = self._kept.get(row)
        if kept is None:
            kept = resized(self.dataset, self.part, row, self.resize)
            if self.small:
                self._kept[row] = kept
        return kept

    def gather(self, rows: NDArray[np.int64]) -> Pixels:
        """Decoded one by one; a row that is asked for twice is decoded once."""
        unique, position = np.unique(rows, return_inverse=True)
        arrays = [self._array(int(row)) for row in unique]
        height, width = (np.array([a.shape[axis] for a in arrays], dtype=np.int64) for axis in (0, 1))
        start = np.cumsum(height * width) - height * width
        flat = torch.from_numpy(np.concatenate([a.reshape(-1) for a in arrays]))
        return Pixels(flat, start[position], height[position], width[position])


def unreadable_image(name: str, fault: Exception) -> DataError:
    """The error for an image; a PassingFault if the machine, and not the file, may be at fault."""
    passing = isinstance(fault, MemoryError) or (isinstance(fault, OSError) and fault.errno in MACHINE)
    reason = str(fault) or type(fault).__name__
    return (PassingFault if passing else BadImage)(f"The image {name} cannot be read: {reason}.")
