"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def write_atomically(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it to disk, then rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_atomically(path, lambda stream: _discard(stream.write(text.encode("utf-8"))))


def write_json(path: Path, data: Any) -> None:
    """Write indented JSON atomically."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def _discard(_: int) -> None:
    return None


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
