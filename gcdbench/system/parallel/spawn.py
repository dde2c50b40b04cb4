"""`--gpus N`: starts the ranks of a run on this machine and looks after them. No torch is needed for that."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from gcdbench.system.parallel.exit_with_parent import PARENT

GRACE = 30.0
"""Seconds the other ranks have to end by themselves after one has ended badly."""
AT_ONCE = 5.0
"""Seconds they have after a second signal."""
LOST = 7
"""Exit code when a rank was lost (see `gcdbench.errors.EXIT_CODES`)."""
STORE = "GCDBENCH_STORE"
"""File in which ranks that were started here find each other; a port would be open to others."""
_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_ASKED = tuple(128 + number for number in (1, 2, 15))
"""Exit codes of ranks that were asked to end."""


def launched() -> bool:
    """Whether a launcher has started this process as one of several."""
    if not all(name in os.environ for name in _LAUNCHED):
        return False
    with suppress(ValueError):
        return int(os.environ["WORLD_SIZE"]) > 1
    return False


def other_rank() -> bool:
    """Whether another rank speaks for this one. What a rank writes that was started here is read by its parent only."""
    return launched() and os.environ["RANK"] != "0" and STORE not in os.environ


def local_rank() -> int:
    """Number of this process among those on this machine."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))) if launched() else 0


def gpu_number(found: int) -> int:
    """Which of the GPUs that this process sees is its own; some launchers show each process just one."""
    return 0 if found == 1 else local_rank()


def rank_environment(rank: int, count: int, store: Path) -> dict[str, str]:
    """What makes a process on this machine a rank; ``store`` is the file in which they find each other."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "OMP_NUM_THREADS": str(max(1, cores // count)),
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        STORE: str(store),
        PARENT: str(os.getpid()),
    }


@contextmanager
def meeting_place() -> Iterator[Path]:
    """A file that no one else can read."""
    with tempfile.TemporaryDirectory(prefix="gcdbench-ranks-") as folder:
        yield Path(folder) / secrets.token_hex(8)


class Company:
    """The ranks that were started here."""

    def __init__(self) -> None:
        self.processes: list[Any] = []
        self.outputs: list[IO[bytes] | None] = []
        self.signals = 0
        self.asked = 0.0
        self.failed: tuple[int, int] | None = None
        """Rank and code of the first that ended badly."""
        self.since = 0.0
        self.killed = False
        """Whether this process had to end some of them."""

    def start(self, arguments: Sequence[str], count: int, store: Path, files: ExitStack) -> None:
        """The first rank has this process's terminal; what the others write goes to files."""
        for rank in range(count):
            self.outputs.append(None if rank == 0 else files.enter_context(tempfile.TemporaryFile()))  # noqa: SIM115
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", "gcdbench", *arguments],
                    env=rank_environment(rank, count, store),
                    stdin=None if rank == 0 else subprocess.DEVNULL,
                    stdout=None if rank == 0 else subprocess.DEVNULL,
                    stderr=None if rank == 0 else self.outputs[rank],
                    start_new_session=True,  # signals reach them through this process, each once
                )
            )

    def pass_on(self, number: int, _: Any) -> None:
        """A signal that asks to end, for all of them: they save the run and end."""
        self.signals += 1
        self.asked = time.monotonic()
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def wait(self) -> None:
        """Until all have ended; one that ends badly takes the others with it, after a while."""
        while any(process.poll() is None for process in self.processes):
            time.sleep(0.05)
            now = time.monotonic()
            bad = [(rank, p.poll()) for rank, p in enumerate(self.processes) if p.poll()]
            # Ranks that were asked to end wait for the first one, which may take its time to save.
            if self.failed is None and bad and not all(code in _ASKED for _, code in bad):
                self.failed, self.since = next(pair for pair in bad if pair[1] not in _ASKED), now
            over = self.failed is not None and now - self.since > GRACE
            if over or (self.signals > 1 and now - self.asked > AT_ONCE):
                self.end()

    def end(self) -> None:
        """All of them, at once."""
        for process in self.processes:
            if process.poll() is None:
                self.killed = True
                process.kill()
                process.wait()

    def verdict(self) -> int:
        """The first rank's exit code, which has said why; where it could not, this says so."""
        codes = [process.returncode for process in self.processes]
        if codes[0] > 0 or not any(codes):
            return int(codes[0])
        if self.signals > 1:
            print("Error: Ended at once. The last checkpoint of the run is kept.", file=sys.stderr)
            return 130
        rank, code = self.failed or next((n, code) for n, code in enumerate(codes) if code)
        last = self._last_line(rank)
        if code > 0 and last:  # a sentence of its own
            print(f"{last} (Rank {rank} of {len(codes)}.)", file=sys.stderr)
            return code
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        print(
            f"Error: Rank {rank} of {len(codes)} {how}. The last checkpoint of the run is kept; the same command "
            "resumes from it.",
            file=sys.stderr,
        )
        return LOST

    def _last_line(self, rank: int) -> str:
        output = self.outputs[rank]
        if output is None:
            return ""
        output.seek(0)
        lines = output.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:500] if lines else ""


def start_ranks(arguments: Sequence[str], count: int) -> int:
    """Run `gcdbench ARGUMENTS` on this many ranks; the exit code of the whole."""
    company = Company()
    with ExitStack() as files, _passing_on(company):
        store = files.enter_context(meeting_place())
        try:
            company.start(arguments, count, store, files)
            company.wait()
        finally:
            company.end()
        return company.verdict()


@contextmanager
def _passing_on(company: Company) -> Iterator[None]:
    """Signals that ask this process to end are passed on to all ranks."""
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # One that is ignored (`nohup`) stays ignored.
    before = {n: signal.signal(n, company.pass_on) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
