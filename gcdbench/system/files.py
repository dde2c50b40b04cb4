"""Writing files so that no one ever sees half of one, and that a power cut cannot take back what was written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from gcdbench.errors import GcdbenchError

_TEMPORARY = ".tmp"
MACHINE = (errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT)
"""What the system says when it, not the file, is at fault."""


def write_atomically(path: Path, write: Callable[[IO[bytes]], None], before: Callable[[], None] | None = None) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it to disk, then rename it into place.

    ``before`` is called when the new file is whole and the old one still there.
    """
    if path.is_symlink():
        path = path.resolve()  # the file behind a link is meant, and the link stays
    if path.exists() and not path.is_file() and not path.is_dir():  # a device or a pipe: there is nothing to replace
        with path.open("wb") as stream:
            write(stream)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o666 & ~_umask())
        if before is not None:
            before()
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically. File names that are no text are written as the bytes they are."""
    write_atomically(path, lambda stream: _discard(stream.write(text.encode("utf-8", "surrogateescape"))))


def write_json(path: Path, data: Any) -> None:
    """Write indented JSON atomically."""
    write_text(path, json_text(data) + "\n")


def json_text(data: Any, **more: Any) -> str:
    """Indented JSON, readable; with escapes if it holds file names that are no text."""
    text = json.dumps(data, indent=2, ensure_ascii=False, **more)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(data, indent=2, **more)
    return text


def parse_json(text: str, **more: Any) -> Any:
    """JSON from outside: whatever is wrong with it is a ValueError, even a nesting that Python cannot follow."""
    try:
        return json.loads(text, **more)
    except RecursionError as fault:
        raise ValueError("it is nested too deeply") from fault


def not_a_file(path: Path) -> str | None:
    """Why something cannot be read as a file, or None. Reading from a pipe or a device might never end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as fault:
        missing = isinstance(fault, FileNotFoundError)
        return "does not exist" if missing else f"cannot be read: {getattr(fault, 'strerror', None) or fault}"
    return None if stat.S_ISREG(mode) else "is no regular file"


def read_json(path: Path, **more: Any) -> Any:
    """The content of a JSON file, or an OSError or ValueError."""
    return parse_json(path.read_text(encoding="utf-8"), **more)


def append_line(path: Path, line: str) -> None:
    """Append a line of text and flush it to disk."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def sweep(folder: Path) -> None:
    """Remove what a process that was killed has left of a file it was writing. No one else may be writing there."""
    for left in folder.glob(f".*{_TEMPORARY}"):
        with suppress(OSError):
            left.unlink()


def cannot_write(fault: OSError, what: str) -> GcdbenchError:
    """What the system said about a file, as a sentence with what to do about it."""
    where = f"{fault.filename}: " if fault.filename else ""
    reason = fault.strerror or str(fault)
    remedy = {
        errno.ENOSPC: " The disk is full: free some space",
        errno.EDQUOT: " Your quota is used up: free some space",
        errno.EFBIG: " The system allows no larger files: raise its limit (`ulimit -f`)",
        errno.EROFS: " The disk is read-only: make it writable, or choose another folder with --runs",
        errno.EACCES: " You may not write there: change its permissions, or choose another folder with --runs",
        errno.EPERM: " You may not write there: change its permissions, or choose another folder with --runs",
        **dict.fromkeys(
            (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY),
            " Something else is in its place: remove that, or choose another folder with --runs",
        ),
    }.get(fault.errno or 0)
    rest = "" if remedy is None else f"{remedy}, then give the same command again; what was saved before is intact."
    return GcdbenchError(f"{what} could not write or read a file: {where}{reason}.{rest}")


def _sync_folder(folder: Path) -> None:
    """A rename is safe from a power cut only when its folder is; not every system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _discard(_: int) -> None:
    return None


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def free_bytes(folder: Path) -> int:
    """Room on the disk of a folder that may not exist yet."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
