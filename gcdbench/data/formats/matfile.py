"""Reads the tables of MATLAB files (level 5, as `save -v6` and `save -v7` write them), in plain Python.

Only what annotation files hold: numbers, text, cells and structs. Every length is compared with what is there before it
is believed, because a damaged file makes readers written in C crash the whole process.
"""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

MAX_BYTES = 1 << 26
"""Neither the file nor what a compressed part unpacks to may be larger; the published ones take a tenth of it."""
MAX_ELEMENTS = 1_000_000
"""Of one cell or struct array."""
MAX_DEPTH = 8
"""Cells and structs within each other."""
MAX_DIMENSIONS = 32

_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_TEXT = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_CELL, _STRUCT, _CHAR = 1, 2, 4
_NUMERIC = range(6, 16)


class MatError(ValueError):
    """The file is not what it should be."""


class _Reader:
    """Elements one after another in a piece of the file."""

    def __init__(self, data: bytes, order: str) -> None:
        self.data = data
        self.order = order
        self.place = 0

    def __bool__(self) -> bool:
        return self.place < len(self.data)

    def element(self) -> tuple[int, bytes]:
        """Type and content of the next element."""
        first, size = self._numbers(2)
        small = first >> 16
        if small:  # up to four bytes, packed together with the type
            if small > 4:
                raise MatError("a small element is larger than four bytes")
            content = self.data[self.place + 4 : self.place + 4 + small]
            self.place += 8
            return first & 0xFFFF, content
        start = self.place + 8
        if size > len(self.data) - start:
            raise MatError("an element is longer than the file")
        padding = 0 if first == _COMPRESSED else -size % 8
        self.place = start + size + padding
        return first, self.data[start : start + size]

    def _numbers(self, count: int) -> tuple[int, ...]:
        if len(self.data) - self.place < 4 * count:
            raise MatError("it ends in the middle of an element")
        return struct.unpack_from(f"{self.order}{count}I", self.data, self.place)

    def array(self) -> np.ndarray:
        """The next element as numbers."""
        kind, content = self.element()
        if kind not in _NUMBERS:
            raise MatError(f"an element of type {kind} stands where numbers should be")
        dtype = np.dtype(self.order + _NUMBERS[kind])
        if len(content) % dtype.itemsize:
            raise MatError("a number is cut off")
        return np.frombuffer(content, dtype)

    def matrix(self, depth: int) -> Any:
        """The next element, which must be a matrix."""
        kind, content = self.element()
        if kind != _MATRIX:
            raise MatError(f"an element of type {kind} stands where a matrix should be")
        return _matrix(_Reader(content, self.order), depth)[1]


def read_variable(path: Path, name: str) -> Any:
    """A variable: numbers as an array, text as str, cells as a list, structs as a list of dictionaries."""
    if path.stat().st_size > MAX_BYTES:
        raise MatError(f"it is larger than {MAX_BYTES:,} bytes")
    data = path.read_bytes()
    if data[:10] == b"MATLAB 7.3" or data[:4] == b"\x89HDF":
        raise MatError("it is a MATLAB 7.3 file; save it with `save -v7`")
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None:
        raise MatError("it is no MATLAB file of level 5")
    reader = _Reader(data[128:], order)
    while reader:
        kind, content = reader.element()
        inner = _Reader(_unpacked(content), order) if kind == _COMPRESSED else None
        if inner is not None:
            kind, content = inner.element()
        if kind == _MATRIX:
            found, value = _matrix(_Reader(content, order), 0, name)
            if found == name:
                return value
    raise MatError(f"it has no variable '{name}'")


def _unpacked(content: bytes) -> bytes:
    packed = zlib.decompressobj()
    try:
        found = packed.decompress(content, MAX_BYTES)
    except zlib.error as fault:
        raise MatError(f"a compressed part is damaged ({fault})") from fault
    if not packed.eof:
        raise MatError("a compressed part is cut off or too large")
    return found


def _matrix(reader: _Reader, depth: int, wanted: str | None = None) -> tuple[str, Any]:
    """Name and value; the value is not looked at if another variable is wanted."""
    if depth > MAX_DEPTH:
        raise MatError("it is nested too deeply")
    if not reader:  # an empty matrix may be written as nothing
        return "", np.zeros(0)
    flags, dimensions = reader.array(), reader.array()
    if not all(np.issubdtype(array.dtype, np.integer) for array in (flags, dimensions)):
        raise MatError("a matrix has a type or size that is no whole number")
    if not len(flags) or len(dimensions) > MAX_DIMENSIONS or (dimensions < 0).any():
        raise MatError("a matrix has no type or an impossible size")
    count = math.prod(int(n) for n in dimensions)
    name = reader.element()[1].decode("latin-1")
    if wanted is not None and name != wanted:
        return name, None
    kind = int(flags[0]) & 0xFF
    if kind == _CELL:
        return name, [reader.matrix(depth + 1) for _ in _as_many(count, reader)]
    if kind == _STRUCT:
        return name, _structs(reader, count, depth)
    if kind == _CHAR:
        return name, _text(reader)
    if kind in _NUMERIC:
        return name, reader.array()
    raise MatError(f"it holds a matrix of kind {kind}, which is neither numbers, text, cells nor structs")


def _structs(reader: _Reader, count: int, depth: int) -> list[dict[str, Any]]:
    length = reader.array()
    width = int(length[0]) if len(length) and np.issubdtype(length.dtype, np.integer) else 0
    content = reader.element()[1]
    if width < 1:
        raise MatError("its fields have no names")
    pieces = (content[i : i + width] for i in range(0, len(content), width))
    fields = [piece.partition(b"\0")[0].decode("latin-1") for piece in pieces]
    if count and not fields:
        raise MatError("its structs have no fields")
    return [{field: reader.matrix(depth + 1) for field in fields} for _ in _as_many(count, reader)]


def _as_many(count: int, reader: _Reader) -> range:
    """This many elements, if there is room for them: each takes eight bytes at least."""
    if count > min(MAX_ELEMENTS, (len(reader.data) - reader.place) // 8):
        raise MatError("it claims more elements than it holds")
    return range(count)


def _text(reader: _Reader) -> str:
    kind, content = reader.element()
    if kind not in _TEXT:
        raise MatError(f"an element of type {kind} stands where text should be")
    encoding = _TEXT[kind]
    if encoding.startswith("utf-") and encoding != "utf-8":
        encoding += "-le" if reader.order == "<" else "-be"
    return content.decode(encoding, "replace")
