"""Decoding a whole part of a dataset with all cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from gcdbench.contracts import Dataset
from gcdbench.data.images import resized, usable
from gcdbench.data.prefetch import ahead, default_workers
from gcdbench.errors import DataError, GcdbenchError, PassingFault

ALONE = 256
"""Images that are not worth the start of further processes."""


DEATHS = 3
"""Processes that may die while a part is decoded before it is given up."""


class _Work(TorchDataset[Any]):
    """Gives processes a row and takes back what was made of it, or the sentence that says why nothing was."""

    def __init__(self, dataset: Dataset, part: str, work: Callable[[int], Any], first: int = 0) -> None:
        self.dataset = dataset
        self.part = part
        self.work = work
        self.first = first

    def __len__(self) -> int:
        return len(self.dataset.index(self.part)) - self.first

    def __getitem__(self, number: int) -> Any:
        try:
            return self.work(self.first + number)
        except GcdbenchError as fault:  # raised in a process, it would arrive wrapped in that process's traceback
            return type(fault)(str(fault))


def decoded(dataset: Dataset, part: str, resize: int, first: int = 0) -> Iterator[NDArray[np.uint8]]:
    """Every image of a part from row ``first`` on, decoded and resized, in row order, with all cores.

    Processes where they can be forked, because decoding in threads keeps only one or two cores busy; elsewhere a new
    process would have to run the user's script again.
    """
    for found in _each(_Work(dataset, part, lambda row: resized(dataset, part, row, resize), first)):
        if isinstance(found, GcdbenchError):
            raise found
        yield found


def unreadable(dataset: Dataset, part: str, tick: Callable[[int, int], None] | None = None) -> dict[int, str]:
    """Rows of a part whose image cannot be used, each with the reason; every image is decoded, with all cores."""
    count = len(dataset.index(part))

    def look(row: int) -> None:
        usable(dataset, part, row)

    found: dict[int, str] = {}
    for row, fault in enumerate(_each(_Work(dataset, part, look))):
        if isinstance(fault, DataError) and not isinstance(fault, PassingFault):
            found[row] = str(fault)
        elif isinstance(fault, GcdbenchError):
            raise fault
        if tick is not None:
            tick(row + 1, count)
    return found


def _each(rows: _Work) -> Iterator[Any]:
    """What is made of every row, in order. A process that dies (killed for its memory, say) is replaced, twice."""
    if len(rows) <= ALONE or not sys.platform.startswith("linux"):
        for _, result in ahead(rows.__getitem__, range(len(rows)), default_workers(), 64):
            yield result
        return
    done, deaths = 0, 0
    while done < len(rows):
        try:
            for result in _forked(_Work(rows.dataset, rows.part, rows.work, rows.first + done)):
                done += 1
                yield result
        except _Died as fault:
            deaths += 1
            if deaths == DEATHS:
                near = rows.dataset.index(rows.part).items[rows.first + done]
                raise DataError(
                    f"A process that decodes images of {rows.dataset.title} has died {deaths} times, last near {near} "
                    f"({fault}). Is there enough memory? --no-image-store does without these processes."
                ) from fault


class _Died(Exception):
    """A process is gone."""


def _forked(rows: _Work) -> Iterator[Any]:
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
        raise _Died(str(fault)) from fault


def _as_it_is(image: Any) -> Any:
    """No tensor: those travel through shared memory, of which containers have little."""
    return image
