"""Locks between processes. The system holds them: one of a process that died is free at once, whatever the clock says.

The file of a lock names its holder, for a person who wonders. Where a file system has no locks, nothing is locked.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from gcdbench.system.files import read_json

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)
"""What file systems answer that have no locks."""
MODE = 0o666
"""Whoever shares a folder shares its locks."""
Wait = Callable[[str], None]
"""Called with the holder of the lock, before waiting for it."""


@contextmanager
def locked(path: Path, wait: Wait, remove: bool = False) -> Iterator[None]:
    """Hold the lock ``path``, waiting for it if need be; ``remove`` leaves no file behind."""
    lock = FileLock(path, mode=MODE)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            wait(holder(path))
            lock.acquire()
    except OSError as fault:
        if fault.errno not in _NO_LOCKS:
            raise
        yield
        return
    try:
        ours = _inode(path)
        _sign(path)
        yield
    finally:
        with suppress(OSError):
            if _inode(path) == ours:  # another process may have removed ours, and made another
                if remove:
                    path.unlink(missing_ok=True)
                else:
                    os.truncate(path, 0)
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock, or it cannot be known."""
    lock = FileLock(path, mode=MODE)
    try:
        lock.acquire(blocking=False)
    except (Timeout, OSError):
        return True
    lock.release()
    return False


def holder(path: Path) -> str:
    """Who signed the lock last: `process 4711 on host`."""
    try:
        facts = read_json(path)
        return f"process {int(facts['process'])} on {facts['host']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"


def _sign(path: Path) -> None:
    facts = {"process": os.getpid(), "host": socket.gethostname()}
    with suppress(OSError):  # a full disk does not stop a lock from working
        path.write_text(json.dumps(facts))


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        there = path.stat()
    except OSError:
        return None
    return there.st_dev, there.st_ino
