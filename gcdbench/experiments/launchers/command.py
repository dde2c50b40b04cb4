"""A job's command in a process of its own, on whatever machine the job was brought to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gcdbench.system.parallel.exit_with_parent import PARENT

SAVING = 60.0
"""Seconds a command has to save its runs when it is asked to end."""
SAVED = (128 + signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGHUP)
"""Exit codes of a command that was asked to end and has saved its runs."""
RANK_LOST = 7
MARK = "gcdbench-job: "
"""Begins the line in a log that says where a job was started."""


class Command:
    """Runs a command; can be asked to end it. Holds nothing but plain text, so that it can be sent anywhere."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: str) -> None:
        self.command = list(command)
        self.environment = dict(environment)
        self.log = log
        self._process: Any = None

    def start(self) -> None:
        """Begin; what it prints is added to the log."""
        Path(self.log).parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as output:
            output.write(f"{MARK}started on {socket.gethostname()}\n".encode())
            output.flush()
            self._process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment, PARENT: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for whoever follows the sweep, who then asks each job to end
            )

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        return None if self._process is None else self._process.poll()

    def wait(self) -> int:
        """Until it has ended; by looking now and then, so that a signal handler may end it meanwhile."""
        while (code := self._process.poll()) is None:
            time.sleep(0.2)
        return int(code)

    def ask_to_end(self) -> None:
        """It saves its runs and ends."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Ask it to end, and wait until it has."""
        self.ask_to_end()
        if self._process is not None:
            try:
                self._process.wait(SAVING)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None}


def was_taken_away(code: int) -> bool:
    """Whether a command with this exit code did not end by itself: killed, asked to end, or one of its ranks was."""
    return code < 0 or code in SAVED or code == RANK_LOST
