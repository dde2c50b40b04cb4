"""A process that must not outlive the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

PARENT = "GCDBENCH_PARENT"
"""Environment variable with the process number of the parent."""
_PDEATHSIG = 1


def end_with_parent() -> None:
    """Where a parent is named, be asked to end (SIGTERM, so that a run is saved) when it dies. Linux only."""
    parent = os.environ.pop(PARENT, "")
    if parent and hasattr(signal, "SIGUSR2"):  # Slurm's word to the parent, who asks this process to end
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    if not parent.isdigit() or not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before this was asked for
        os.kill(os.getpid(), signal.SIGTERM)
