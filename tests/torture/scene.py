"""What is tortured: small runs in processes of their own, started by fork so that no time goes into imports."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

Prepare = Callable[[], None]
PATIENCE = 60.0
"""Seconds after which a process counts as hanging."""


@dataclass
class Child:
    """A process that runs one `gcdbench` command."""

    pid: int
    log: Path
    started: float = field(default_factory=time.monotonic)

    def wait(self) -> tuple[int, str]:
        """Exit code (negative: the signal that killed it) and everything it said. One that hangs is killed."""
        while time.monotonic() - self.started < PATIENCE:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                return code, self.log.read_text(errors="replace")
            time.sleep(0.005)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return -999, self.log.read_text(errors="replace") + "\nIt hung."

    def signal(self, number: int) -> None:
        """Send a signal, if the process is still there."""
        os.kill(self.pid, number)


@dataclass(frozen=True)
class Workload:
    """A command whose result is known."""

    name: str
    arguments: Sequence[str]
    base: Prepare | None = None
    """Done in every process that runs it, with or without a fault."""

    def start(self, runs: Path, prepare: Prepare | None = None, more: Sequence[str] = ()) -> Child:
        """Run the command in a new process, after ``prepare`` has been called there."""
        from gcdbench.cli.main import main

        runs.mkdir(parents=True, exist_ok=True)
        log = runs.parent / f"{runs.name}-{time.monotonic_ns()}.log"
        pid = os.fork()
        if pid:
            return Child(pid, log)
        code = 99
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT, 0o666)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
            for step in (self.base, prepare):
                if step is not None:
                    step()
            main([*self.arguments, "--runs", str(runs), *more])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def finish(self, runs: Path, more: Sequence[str] = ()) -> tuple[int, str]:
        """The same command again, with no fault."""
        return self.start(runs, more=more).wait()


def digest(runs: Path) -> dict[str, str]:
    """Per finished run a hash of its metrics, its predictions and every bit of its last checkpoint."""
    from gcdbench.training import checkpoint

    found = {}
    for file in sorted(runs.glob("*/*/*/record.json")):
        folder, record = file.parent, json.loads(file.read_text())
        if "metrics" not in record:
            continue
        content = hashlib.sha256(json.dumps(record["metrics"], sort_keys=True).encode())
        with np.load(folder / "predictions.npz") as arrays:
            for name in sorted(arrays.files):
                content.update(name.encode() + arrays[name].tobytes())
        state = checkpoint.load(folder)
        _add(content, None if state is None else {k: state[k] for k in ("stage", "epoch", "step", "lane", "selected")})
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            kept = {k: v for k, v in json.loads(line).items() if "seconds" not in k and k != "lanes"}
            content.update(json.dumps(kept, sort_keys=True).encode())
        found[record["run_id"]] = content.hexdigest()
    return found


def _add(content: hashlib._Hash, state: object) -> None:
    if isinstance(state, torch.Tensor):
        content.update(str(state.dtype).encode() + state.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(state, dict):
        for key, value in state.items():
            content.update(str(key).encode())
            _add(content, value)
    elif isinstance(state, list | tuple):
        for value in state:
            _add(content, value)
    else:
        content.update(repr(state).encode())
