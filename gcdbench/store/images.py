"""The image store: every image of a part decoded and resized once, packed as uint8, read by position.

Read with plain reads instead of a memory map: pages that were read stay in the system's cache, but do not count as
this process's memory, so a run's memory does not grow with the number of images.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from numpy.typing import NDArray

from gcdbench.contracts import Dataset
from gcdbench.data.ahead import ahead, default_workers
from gcdbench.data.images import Pixels, resized
from gcdbench.data.splits import index_hash
from gcdbench.store.folder import StoreFolder, Tell, damaged, spoken_size

PIXELS, INDEX = "pixels.bin", "index.npy"
ENTRY = np.dtype([("start", "<i8"), ("height", "<i4"), ("width", "<i4"), ("checksum", "<u4")])
"""First pixel, size and CRC-32 of one image."""
SAMPLE = 48
"""Images whose size is looked at to tell how large a store will be."""

Tick = Callable[[int, int], None]
"""Told how much of how much is done."""


def image_facts(dataset: Dataset, part: str, resize: int) -> dict[str, Any]:
    """Everything that decides the pixels of a part at a size."""
    return {
        "dataset": dataset.name,
        "part": part,
        "resize": resize,
        "index": index_hash(dataset.index(part), dataset.content_hash(part)),
        "files": dataset.files_hash(part),
        "pillow": PIL.__version__,
    }


def image_store(root: Path, dataset: Dataset, part: str, resize: int) -> StoreFolder:
    """Where the packed images of a part are, or would be."""
    return StoreFolder(root, "images", image_facts(dataset, part, resize))


def estimate(dataset: Dataset, part: str, resize: int) -> int:
    """About how many bytes the store will take, from a sample of the images."""
    count = len(dataset.index(part))
    rows = np.unique(np.linspace(0, count - 1, min(count, SAMPLE)).astype(int))
    sizes = [resized(dataset, part, int(row), resize).size for row in rows]
    return int(np.mean(sizes) * count) + count * ENTRY.itemsize


def pack(store: StoreFolder, dataset: Dataset, part: str, resize: int, tell: Tell, tick: Tick | None = None) -> None:
    """Write the store with all cores, unless it is there."""
    count = len(dataset.index(part))

    def fill(folder: Path) -> dict[str, Any]:
        index = np.zeros(count, dtype=ENTRY)
        start = 0
        with (folder / PIXELS).open("wb") as stream:
            decoded = ahead(lambda row: resized(dataset, part, row, resize), range(count), default_workers(), 64)
            for row, image in decoded:
                content = np.ascontiguousarray(image)
                index[row] = (start, *image.shape[:2], zlib.crc32(content.data))
                stream.write(content.data)
                start += image.shape[0] * image.shape[1]
                if tick is not None:
                    tick(row + 1, count)
            stream.flush()
            os.fsync(stream.fileno())
        np.save(folder / INDEX, index, allow_pickle=False)
        digest = hashlib.sha256((folder / INDEX).read_bytes()).hexdigest()
        return {"images": count, "pixels": start, "index_sha256": digest}

    what = f"{count:,} images of {dataset.title} ({part}) at {resize} px"
    store.build(estimate(dataset, part, resize), what, fill, tell)


class PackedImages:
    """Reads a finished store. Each image's checksum is compared when the image is first read."""

    def __init__(self, store: StoreFolder) -> None:
        self.path = store.path
        description = store.description() or {}
        try:
            content = (self.path / INDEX).read_bytes()
            if hashlib.sha256(content).hexdigest() != description.get("index_sha256"):
                raise damaged(self.path, f"the checksum of {INDEX} does not match")
            self.index = np.load(self.path / INDEX, allow_pickle=False)
            self._file = (self.path / PIXELS).open("rb", buffering=0)
        except (OSError, ValueError) as fault:
            raise damaged(self.path, str(fault)) from fault
        there, wanted = os.fstat(self._file.fileno()).st_size, 3 * int(description["pixels"])
        if there != wanted:
            raise damaged(self.path, f"{PIXELS} has {spoken_size(there)} instead of {spoken_size(wanted)}")
        self._checked = np.zeros(len(self.index), dtype=bool)

    def __len__(self) -> int:
        return len(self.index)

    def gather(self, rows: NDArray[np.int64]) -> Pixels:
        """One read per different row."""
        unique, position = np.unique(rows, return_inverse=True)
        entries = self.index[unique]
        height, width = (entries[side].astype(np.int64) for side in ("height", "width"))
        end = np.cumsum(height * width)
        start = end - height * width
        flat = torch.empty(3 * int(end[-1]), dtype=torch.uint8)
        buffer = flat.numpy().data
        for row, entry, first, last in zip(unique, entries, start, end, strict=True):
            piece = buffer[3 * int(first) : 3 * int(last)]
            try:
                read_into(self._file.fileno(), piece, 3 * int(entry["start"]))
            except OSError as fault:
                raise damaged(self.path, str(fault)) from fault
            if not self._checked[row]:
                if zlib.crc32(piece) != entry["checksum"]:
                    raise damaged(self.path, f"the checksum of image {row} does not match")
                self._checked[row] = True
        return Pixels(flat, start[position], height[position], width[position])


def read_into(file: int, buffer: memoryview, offset: int) -> None:
    """Fill a buffer from a position of an open file, whatever other threads read."""
    while len(buffer):
        if hasattr(os, "preadv"):
            count = os.preadv(file, [buffer], offset)
        else:  # macOS before 11
            piece = os.pread(file, len(buffer), offset)
            count = len(piece)
            buffer[:count] = piece
        if count == 0:
            raise OSError("the file is too short")
        buffer, offset = buffer[count:], offset + count
