"""The image store: every image of a part decoded and resized once, packed as uint8, read through a memory map."""

from __future__ import annotations

import hashlib
import mmap
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from numpy.typing import NDArray

from gcdbench.contracts import Dataset
from gcdbench.data.formats.decoding import decoded
from gcdbench.data.images import Pixels, resized
from gcdbench.data.splits import index_hash
from gcdbench.data.store.resumable_writer import Growing
from gcdbench.data.store.store_folder import (
    Announce,
    ReadPages,
    StoreFolder,
    damaged,
    read_array,
    require_size,
    write_array,
)
from gcdbench.errors import DataError

PIXELS, INDEX = "pixels.bin", "index.npy"
ENTRY = np.dtype([("start", "<i8"), ("height", "<i4"), ("width", "<i4"), ("checksum", "<u4")])
"""First pixel, size and CRC-32 of one image."""
SAMPLE = 48
"""Images whose size is looked at to estimate how large a store will be."""

Tick = Callable[[int, int], None]
"""Told how much of how much is done."""


def image_facts(dataset: Dataset, part: str, resize: int) -> dict[str, Any]:
    """Everything that decides the pixels of a part at a size."""
    content, files = dataset.content_hash(part), dataset.files_hash(part)
    # A dataset that says nothing of its files is recognised by a few of its images: its code may have changed.
    probe = {} if content or files else {"some_images": _some_images(dataset, part, resize)}
    return {
        "dataset": dataset.name,
        "part": part,
        "resize": resize,
        "index": index_hash(dataset.index(part), content),
        "files": files,
        "pillow": PIL.__version__,
        **probe,
    }


def _some_images(dataset: Dataset, part: str, resize: int) -> str:
    count = len(dataset.index(part))
    digest = hashlib.sha256()
    for row in np.unique(np.linspace(0, count - 1, min(count, 4)).astype(int)):
        digest.update(np.ascontiguousarray(resized(dataset, part, int(row), resize)).data)
    return digest.hexdigest()[:16]


def image_store(root: Path, dataset: Dataset, part: str, resize: int) -> StoreFolder:
    """Where the packed images of a part are, or would be."""
    return StoreFolder(root, "images", image_facts(dataset, part, resize))


def estimate(dataset: Dataset, part: str, resize: int) -> int:
    """About how many bytes the store will take, from a sample of the images."""
    count = len(dataset.index(part))
    rows = np.unique(np.linspace(0, count - 1, min(count, SAMPLE)).astype(int))
    sizes = [resized(dataset, part, int(row), resize).size for row in rows]
    return int(np.mean(sizes) * count) + count * ENTRY.itemsize


def pack(
    store: StoreFolder, dataset: Dataset, part: str, resize: int, announce: Announce, tick: Tick | None = None
) -> None:
    """Write the store with all cores, unless it is there."""
    count, before = len(dataset.index(part)), dataset.files_hash(part)

    def fill(folder: Path) -> dict[str, Any]:
        with Growing(folder, PIXELS, ENTRY) as growing:
            for image in decoded(dataset, part, resize, growing.rows):
                content = np.ascontiguousarray(image)
                growing.add(content.tobytes(), (growing.bytes // 3, *image.shape[:2], zlib.crc32(content.data)))
                growing.mark()
                if tick is not None:
                    tick(growing.rows, count)
        if dataset.files_hash(part) != before:
            raise DataError(
                f"The image files of {dataset.title} ({part}) have changed while they were packed. "
                "Give the same command once more."
            )
        pixels = growing.bytes // 3
        return {"images": count, "pixels": pixels, "index_sha256": write_array(folder / INDEX, growing.finish())}

    what = f"{count:,} images of {dataset.title} ({part}) at {resize} px"
    store.build(estimate(dataset, part, resize), what, fill, announce)


class PackedImages:
    """Reads a finished store through a memory map. An image's checksum is compared when it is first asked for."""

    def __init__(self, store: StoreFolder) -> None:
        self.path = store.path
        description = store.description() or {}
        try:
            self.index = read_array(self.path / INDEX, description["index_sha256"])
            require_size(self.path / PIXELS, 3 * int(description["pixels"]))
            with (self.path / PIXELS).open("rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as fault:
            raise damaged(self.path, str(fault)) from fault
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the memory is read-only: no one writes to it
            self._flat = torch.frombuffer(self._map, dtype=torch.uint8)
        self._pages = ReadPages(self._map)
        self._checked = np.zeros(len(self.index), dtype=bool)

    def __len__(self) -> int:
        return len(self.index)

    def gather(self, rows: NDArray[np.int64]) -> Pixels:
        """Where the images are in the map; nothing is copied."""
        entries = self.index[rows]
        start, height, width = (entries[name].astype(np.int64) for name in ("start", "height", "width"))
        self._pages.add(3 * int((height * width).sum()))
        for row in rows[~self._checked[rows]].tolist():
            entry = self.index[row]
            first = 3 * int(entry["start"])
            piece = memoryview(self._map)[first : first + 3 * int(entry["height"]) * int(entry["width"])]
            if zlib.crc32(piece) != entry["checksum"]:
                raise damaged(self.path, f"the checksum of image {row} does not match")
            self._checked[row] = True
        return Pixels(self._flat, start, height, width)
