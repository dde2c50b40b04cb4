"""Ctrl-C, SIGTERM and SIGHUP: asked to stop, a run finishes its step, is saved, and ends with a sentence."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from gcdbench.errors import Terminated

_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class Interrupts:
    """While entered, signals that end a process are raised where they do no harm; a second one is raised at once.

    Only the main thread can do this, and only for signals that no one else handles or ignores (`nohup`).
    """

    def __init__(self) -> None:
        self._depth = 0
        self._pending: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                number = getattr(signal, name, None)  # Windows has no SIGHUP
                if number is not None and _ours(signal.getsignal(number)):
                    self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if self._pending is not None:  # what was to be done whole has failed meanwhile; the wish to stop remains
            number, self._pending = self._pending, None
            raise interruption(number)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """What is done inside is done whole; a signal that arrives meanwhile is raised at the end."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if self._pending is not None and not self._depth:
            number, self._pending = self._pending, None
            raise interruption(number)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Signals that arrive inside wait until they are asked for them (`take`); a second one is raised at once."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def take(self) -> int:
        """The signal that has arrived, 0 if none has."""
        number, self._pending = self._pending or 0, None
        return number

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if not self._depth or self._pending is not None:
            raise interruption(number)
        self._pending = number
        if os.environ.get("RANK", "0") != "0":  # of several ranks one says it
            return
        with suppress(OSError):  # a plain write: printing inside a signal handler could meet itself
            os.write(2, b"\nStopping after this step; once more stops at once.\n")


def _ours(handler: Any) -> bool:
    """Whether a handler may be replaced: the usual one, or that of the command around this."""
    return handler in _DEFAULTS or isinstance(getattr(handler, "__self__", None), Interrupts)


def interruption(number: int) -> KeyboardInterrupt:
    """What a signal is raised as."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
