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
    if not isinstance(value, bytes | str):
        raise _refuse("something else where text should be")
    return value.decode("latin1") if isinstance(value, bytes) else value


class _Fixed:
    """Something that a pickle may name, but not change."""

    def __setstate__(self, state: Any) -> None:
        """Refused: it belongs to all pickles."""
        raise _refuse("a state for something that has none")


class _Type(_Fixed):
    """Stands for a numpy dtype."""

    def __init__(self, name: str) -> None:
        self.dtype = np.dtype(_TYPES[name])

    def __setstate__(self, state: Any) -> None:
        """A byte order other than the usual one is refused; the rest says nothing about plain numbers."""
        if not isinstance(state, tuple) or len(state) < 2 or _text(state[1]) not in ("|", "<", "="):
            raise _refuse("an array of another byte order")


class _Array(_Fixed):
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


class _ArrayName(_Fixed):
    """Stands for the name `numpy.ndarray`, which can only be passed on."""


class _MakeType(_Fixed):
    """Stands for `numpy.dtype`."""

    def __call__(self, name: Any, *_: Any) -> _Type:
        if _text(name) not in _TYPES:
            raise _refuse(f"an array of type {_text(name)[:20]!r}")
        return _Type(_text(name))


class _MakeArray(_Fixed):
    """Stands for numpy's `_reconstruct`."""

    def __call__(self, kind: Any, *_: Any) -> _Array:
        if not isinstance(kind, _ArrayName):
            raise _refuse("an array of another kind")
        return _Array()


class _Encode(_Fixed):
    """Stands for `codecs.encode`, which is how bytes are written in old protocols."""

    def __call__(self, text: Any, encoding: Any = "latin1") -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise _refuse("text in another encoding")
        return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], _Fixed] = {
    ("numpy", "ndarray"): _ArrayName(),
    ("numpy", "dtype"): _MakeType(),
    ("numpy.core.multiarray", "_reconstruct"): _MakeArray(),
    ("numpy._core.multiarray", "_reconstruct"): _MakeArray(),
    ("_codecs", "encode"): _Encode(),
}
_OPERATIONS = (
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 FLOAT BINFLOAT "
    "STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE "
    "EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD"
)


_CODES = [getattr(pickle, name)[0] for name in _OPERATIONS.split()]


class _Operations(dict[int, Any]):
    """What a pickle may do."""

    def __missing__(self, code: int) -> Any:
        raise _refuse(f"the operation {chr(code)!r}")


# The unpickler in Python, not the one in C: it can be restricted, a few thousand operations take no time, and
# no number in the file makes it reserve memory.
_Python: Any = pickle._Unpickler


class _Restricted(_Python):  # type: ignore[misc]
    dispatch = _Operations((code, _Python.dispatch[code]) for code in _CODES)

    def find_class(self, module: str, name: str) -> Any:
        """Called for everything that a pickle names."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not allowed") from None

    def _keys(self, keys: list[Any]) -> None:
        """Text only: hashing a tower of tuples would overflow the stack of the interpreter."""
        if not all(isinstance(key, bytes | str) for key in keys):
            raise _refuse("a dictionary with keys other than text")

    def _setitem(self) -> None:
        self._keys(self.stack[-2:-1])
        self.load_setitem()

    def _setitems(self) -> None:
        self._keys(self.stack[::2])
        self.load_setitems()

    def _dict(self) -> None:
        self._keys(self.stack[::2])
        self.load_dict()

    dispatch[pickle.SETITEM[0]] = _setitem
    dispatch[pickle.SETITEMS[0]] = _setitems
    dispatch[pickle.DICT[0]] = _dict


def load_batch(path: Path) -> dict[bytes, Any]:
    """The dictionary of a CIFAR batch file, keys as bytes."""
    try:
        content = _Restricted(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except OSError as fault:
        raise DataError(f"The file {path} cannot be read: {fault.strerror or fault}.") from fault
    except MemoryError as fault:
        raise DataError(f"The file {path} does not fit into memory.") from fault
    except Exception as fault:  # a damaged pickle can raise almost anything; none of it is our fault
        raise DataError(f"The file {path} is not a CIFAR batch: {type(fault).__name__}: {fault}.") from fault
    if not isinstance(content, dict):
        raise DataError(f"The file {path} is not a CIFAR batch: it holds a {type(content).__name__}.")
    return {_key(k): v.values if isinstance(v, _Array) else v for k, v in content.items()}


def _key(key: Any) -> Any:
    return key.encode("utf-8", "replace") if isinstance(key, str) else key
