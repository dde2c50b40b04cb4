"""Content and one entry per row, growing side by side while a store is made. How much of it is safe on the disk is
noted now and then, so that a process that is killed does not cost the hours before."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gcdbench.system.files import read_json, write_json

NOTE = "progress.json"
ENTRIES = "entries.bin"
EVERY = 30.0
"""Seconds between notes."""


class Growing:
    """Opened in a folder where an earlier process has noted some rows, it resumes after them."""

    def __init__(self, folder: Path, content: str, entry: np.dtype[Any]) -> None:
        self._folder = folder
        self._entry = entry
        self._content = folder / content
        self.rows, self._bytes = self._noted()
        self._marked = (self.rows, self._bytes)
        self._last = time.monotonic()

    def _noted(self) -> tuple[int, int]:
        try:
            note = read_json(self._folder / NOTE)
            rows, size = int(note["rows"]), int(note["bytes"])
            enough = (
                self._content.stat().st_size >= size >= 0
                and (self._folder / ENTRIES).stat().st_size >= rows * self._entry.itemsize >= 0
            )
            return (rows, size) if enough else (0, 0)
        except (OSError, ValueError, TypeError, KeyError):
            return 0, 0

    def __enter__(self) -> Growing:
        self._stream = _opened(self._content, self._bytes)
        self._entries = _opened(self._folder / ENTRIES, self.rows * self._entry.itemsize)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        try:
            if kind is None or not issubclass(kind, Exception):  # done, or interrupted
                self._note()
        finally:
            self._stream.close()
            self._entries.close()

    @property
    def bytes(self) -> int:
        """Size of the content so far."""
        return self._bytes

    def add(self, content: Any, entry: Any) -> None:
        """One more row."""
        self._stream.write(content)
        self._entries.write(np.array(entry, dtype=self._entry).tobytes())
        self._bytes += len(content)
        self.rows += 1

    def mark(self) -> None:
        """From here the next process could continue."""
        self._marked = (self.rows, self._bytes)
        if time.monotonic() - self._last > EVERY:
            self._note()

    def _note(self) -> None:
        for stream in (self._stream, self._entries):
            stream.flush()
            os.fsync(stream.fileno())
        write_json(self._folder / NOTE, {"rows": self._marked[0], "bytes": self._marked[1]})
        self._last = time.monotonic()

    def finish(self) -> NDArray[Any]:
        """All entries; nothing but the content is left in the folder. Call it outside."""
        found: NDArray[Any] = np.fromfile(self._folder / ENTRIES, dtype=self._entry)
        for name in (ENTRIES, NOTE):
            (self._folder / name).unlink()
        return found


def _opened(path: Path, size: int) -> IO[bytes]:
    """A file cut to what is known to be good, to be written on."""
    stream = path.open("r+b" if path.exists() else "w+b")
    stream.truncate(size)
    stream.seek(size)
    return stream
