"""The token store: trunk tokens of views that never change, on disk, so that a pass over them costs the tail only."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcdbench.data.store.packed_images import Tick
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

TOKENS, CHECKSUMS = "tokens.bin", "checksums.npy"
STORED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Names of the types tokens can be stored in; numpy knows them by their bytes only."""


def token_bytes(rows: int, shape: tuple[int, ...], dtype: str) -> int:
    """Size of a store."""
    return rows * int(np.prod(shape)) * STORED[dtype].itemsize


class TokenKind(NamedTuple):
    """What a store holds: how many rows, of which shape and type."""

    rows: int
    shape: tuple[int, ...]
    dtype: str


def write_tokens(
    store: StoreFolder,
    what: str,
    kind: TokenKind,
    parts: Callable[[int], Iterable[Tensor]],
    announce: Announce,
    tick: Tick | None = None,
) -> None:
    """Write tokens of one kind, unless the store is there.

    ``parts`` brings them in order, from the first row of a part on; only the first one unless an earlier process was
    killed.
    """
    rows, shape, dtype = kind

    def fill(folder: Path) -> dict[str, Any]:
        with Growing(folder, TOKENS, np.dtype("<u4")) as growing:
            for part in parts(growing.rows):
                content = part.to(STORED[dtype]).cpu().contiguous()
                # Bytes are bytes: numpy has no bfloat16.
                for row in content.view(len(content), -1).view(torch.uint8).numpy():
                    growing.add(row.data, zlib.crc32(row))
                if not content.isfinite().all():
                    raise DataError(f"Some tokens are too large for {dtype}: store them as bf16 or fp32.")
                growing.mark()
                if tick is not None:
                    tick(growing.rows, rows)
        digest = write_array(folder / CHECKSUMS, growing.finish())
        return {"rows": rows, "shape": list(shape), "dtype": dtype, "checksums_sha256": digest}

    store.build(token_bytes(rows, shape, dtype), what, fill, announce)


class TokenStore:
    """Reads a finished store through a memory map; a row's checksum is compared when it is first read."""

    def __init__(self, store: StoreFolder) -> None:
        self.path = store.path
        description = store.description() or {}
        try:
            self.rows, self.dtype = int(description["rows"]), STORED[description["dtype"]]
            self.shape = tuple(int(n) for n in description["shape"])
            self._checksums = read_array(self.path / CHECKSUMS, description["checksums_sha256"])
            width = int(np.prod(self.shape)) * self.dtype.itemsize
            require_size(self.path / TOKENS, self.rows * width)
            self._map = np.memmap(self.path / TOKENS, dtype=np.uint8, mode="r", shape=(self.rows, width))
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as fault:
            raise damaged(self.path, str(fault)) from fault
        self._pages = ReadPages(self._map._mmap)  # type: ignore[attr-defined]
        self._checked = np.zeros(self.rows, dtype=bool)

    def __len__(self) -> int:
        return self.rows

    def read(self, rows: NDArray[np.int64]) -> Tensor:
        """(rows, *shape) in the stored type, on the host; may be called from several threads at once."""
        self._pages.add(self._map[:1].nbytes * len(rows))
        found = self._map[rows]
        for position in np.flatnonzero(~self._checked[rows]):
            if zlib.crc32(found[position]) != self._checksums[rows[position]]:
                raise damaged(self.path, f"the checksum of row {rows[position]} does not match")
        self._checked[rows] = True
        return torch.from_numpy(found).view(self.dtype).view(len(rows), *self.shape)
