"""Moments at which a process writes: every piece of a checkpoint, every flush, every rename."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _hook(arrived: Callable[[], None]) -> None:
    """Call ``arrived`` before and after everything that writes in this process."""
    from gcdbench.training import checkpoint

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **more: Any) -> Any:
            arrived()
            result = function(*arguments, **more)
            arrived()
            return result

        return wrapped

    class Stream:
        """The file below a checkpoint's checksum."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner
            self.write = wrap(inner.write)
            self.flush = inner.flush

    original = checkpoint._Hashing.__init__

    def on_top(self: Any, stream: Any) -> None:
        original(self, Stream(stream))  # type: ignore[arg-type]

    for name in ("replace", "fsync", "chmod"):
        setattr(os, name, wrap(getattr(os, name)))
    checkpoint._Hashing.__init__ = on_top  # type: ignore[method-assign]


def count_events(counter: Path) -> None:
    """Keep the number of events in a file."""
    seen = [0]

    def arrived() -> None:
        seen[0] += 1
        counter.write_text(str(seen[0]))

    _hook(arrived)


def at_event(number: int, action: Callable[[], None]) -> None:
    """Do something at the event of that number, once."""
    seen = [0]

    def arrived() -> None:
        seen[0] += 1
        if seen[0] == number + 1:
            action()

    _hook(arrived)


def kill_at(number: int) -> None:
    """SIGKILL at that event."""
    at_event(number, lambda: os.kill(os.getpid(), signal.SIGKILL))


def fail_from(number: int, code: int) -> None:
    """From that event on, everything that writes fails with this error of the system."""
    seen = [0]

    def arrived() -> None:
        seen[0] += 1
        if seen[0] > number:
            raise OSError(code, os.strerror(code))

    _hook(arrived)
