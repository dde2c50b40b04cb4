"""Decoding a whole part of a dataset with all cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from gcdbench.contracts import Dataset
from gcdbench.data.ahead import ahead, default_workers
from gcdbench.data.images import resized
from gcdbench.errors import DataError, GcdbenchError

ALONE = 256
"""Images that are not worth the start of further processes."""


class _Decoder(TorchDataset[NDArray[np.uint8] | GcdbenchError]):
    """Gives processes a row and takes back its resized image, or the sentence that says why there is none."""

    def __init__(self, dataset: Dataset, part: str, resize: int) -> None:
        self.dataset = dataset
        self.part = part
        self.resize = resize

    def __len__(self) -> int:
        return len(self.dataset.index(self.part))

    def __getitem__(self, row: int) -> NDArray[np.uint8] | GcdbenchError:
        try:
            return resized(self.dataset, self.part, row, self.resize)
        except GcdbenchError as fault:  # raised in a process, it would arrive wrapped in that process's traceback
            return type(fault)(str(fault))


def decoded(dataset: Dataset, part: str, resize: int) -> Iterator[NDArray[np.uint8]]:
    """Every image of a part, decoded and resized, in row order, with all cores.

    Processes where they can be forked, because decoding in threads keeps only one or two cores busy; elsewhere a new
    process would have to run the user's script again.
    """
    rows = _Decoder(dataset, part, resize)
    if len(rows) <= ALONE or not sys.platform.startswith("linux"):
        images = _threaded(rows)
    else:
        images = _forked(rows)
    for found in images:
        if isinstance(found, GcdbenchError):
            raise found
        yield found


def _threaded(rows: _Decoder) -> Iterator[NDArray[np.uint8] | GcdbenchError]:
    for _, image in ahead(rows.__getitem__, range(len(rows)), default_workers(), 64):
        yield image


def _forked(rows: _Decoder) -> Iterator[NDArray[np.uint8] | GcdbenchError]:
    loader = DataLoader(
        rows,
        batch_size=None,
        shuffle=False,
        num_workers=os.cpu_count() or 1,
        prefetch_factor=8,
        collate_fn=_as_it_is,
        multiprocessing_context="fork",
        generator=torch.Generator(),
    )
    try:
        yield from loader
    except RuntimeError as fault:
        raise DataError(
            f"A process that decodes images of {rows.dataset.title} has died ({fault}). Is there enough memory? "
            "--no-image-store does without these processes."
        ) from fault


def _as_it_is(image: Any) -> Any:
    """No tensor: those travel through shared memory, of which containers have little."""
    return image
