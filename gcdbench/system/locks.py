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

from gcdbench.system.files import read_json

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)
"""What file systems answer that have no locks."""
Wait = Callable[[str], None]
"""Told who holds the lock, before waiting for it."""


@contextmanager
def locked(path: Path, wait: Wait, remove: bool = False) -> Iterator[None]:
    """Hold the lock ``path``, waiting for it if need be; ``remove`` leaves no file behind."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    told = False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    wait(holder(path))
                    told = True
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError as fault:
                if fault.errno not in _NO_LOCKS:
                    raise
            if _is_same(handle, path):  # else its last holder has removed the file that was waited for
                break
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    try:
        _sign(handle)
        yield
    finally:
        with suppress(OSError):
            if remove and _is_same(handle, path):  # another process may have removed ours, and made another
                path.unlink(missing_ok=True)
            else:
                os.ftruncate(handle, 0)
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock, or it cannot be known."""
    try:
        import fcntl

        with path.open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except (ImportError, OSError):
        return True


def holder(path: Path) -> str:
    """Who signed the lock last: `process 4711 on host`."""
    try:
        facts = read_json(path)
        return f"process {int(facts['process'])} on {facts['host']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"


def _sign(handle: int) -> None:
    facts = {"process": os.getpid(), "host": socket.gethostname()}
    with suppress(OSError):  # a full disk does not stop a lock from working
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(facts).encode(), 0)


def _is_same(handle: int, path: Path) -> bool:
    try:
        ours, there = os.fstat(handle), os.stat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
