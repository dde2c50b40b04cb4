"""Reads CIFAR's pickled batches without letting a pickle run anything.

A pickle may name five things that numpy arrays are made of; each is answered by a plain function or class of this
file, so that not even numpy's own code ever sees what the file claims. Everything else is refused.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.errors import DataError

_TYPES = {"u1": np.uint8, "|u1": np.uint8, "i8": np.int64, "<i8": np.int64, "i4": np.int32, "<i4": np.int32}


def _refuse(what: str) -> pickle.UnpicklingError:
    return pickle.UnpicklingError(f"it holds {what}, which is not allowed")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class _Type:
    """Stands for a numpy dtype."""

    def __init__(self, name: Any, *_: Any) -> None:
        if _text(name) not in _TYPES:
            raise _refuse(f"an array of type {_text(name)[:20]!r}")
        self.dtype = np.dtype(_TYPES[_text(name)])

    def __setstate__(self, state: Any) -> None:
        """A byte order other than the usual one is refused; the rest says nothing about plain numbers."""
        if not isinstance(state, tuple) or len(state) < 2 or _text(state[1]) not in ("|", "<", "="):
            raise _refuse("an array of another byte order")


class _Array:
    """Stands for a numpy array until its content has been seen."""

    def __init__(self) -> None:
        self.values: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        """(version, shape, type, order, bytes), as numpy writes it."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise _refuse("an array of another form")
        _, shape, kind, columns_first, content = state
        if not isinstance(kind, _Type) or not isinstance(shape, tuple) or not isinstance(content, bytes):
            raise _refuse("an array of another form")
        if not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 4:
            raise _refuse("an array of another form")
        if math.prod(shape) * kind.dtype.itemsize != len(content):
            raise _refuse("an array of another size than it claims")
        order = "F" if columns_first else "C"
        self.values = np.frombuffer(content, kind.dtype).reshape(shape, order=order)  # type: ignore[call-overload]


class _ArrayName:
    """Stands for the name `numpy.ndarray`, which can only be passed on."""


def _reconstruct(kind: Any, *_: Any) -> _Array:
    if kind is not _ArrayName:
        raise _refuse("an array of another kind")
    return _Array()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """How bytes are written in old protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise _refuse("text in another encoding")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _ArrayName,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _encode,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not allowed") from None


def load_batch(path: Path) -> dict[bytes, Any]:
    """The dictionary of a CIFAR batch file, keys as bytes."""
    try:
        content = _Restricted(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except FileNotFoundError as fault:
        raise DataError(f"The file {path} does not exist.") from fault
    except Exception as fault:  # a damaged pickle can raise almost anything; none of it is our fault
        raise DataError(f"The file {path} is not a CIFAR batch: {type(fault).__name__}: {fault}.") from fault
    if not isinstance(content, dict):
        raise DataError(f"The file {path} is not a CIFAR batch: it holds a {type(content).__name__}.")
    return {_key(k): v.values if isinstance(v, _Array) else v for k, v in content.items()}


def _key(key: Any) -> Any:
    return key.encode("utf-8", "replace") if isinstance(key, str) else key
