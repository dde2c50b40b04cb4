"""Reads CIFAR's pickled batches without letting a pickle run anything.

Only what numpy arrays are made of may be named by the file; everything else is refused.
"""

from __future__ import annotations

import codecs
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.errors import DataError

_reconstruct = np.ndarray(0).__reduce__()[0]

_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): codecs.encode,
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
    return {k.encode() if isinstance(k, str) else k: v for k, v in content.items()}
