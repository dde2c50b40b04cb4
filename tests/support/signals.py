"""Signals of child processes: under nohup or in a background job, tests would hand on ignored ones."""

from __future__ import annotations

import signal


def usual_signals() -> None:
    """For `preexec_fn`: the child handles signals as in a terminal."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
