"""`--gpus N`: starts the ranks of a run on this machine and looks after them. No torch is needed for that."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

from gcdbench.ranks.parent import PARENT

GRACE = 60.0
"""Seconds the other ranks have to end by themselves after one has ended badly."""
LOST = 7
"""Exit code when a rank was lost (see `gcdbench.errors.EXIT_CODES`)."""
_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> bool:
    """Whether a launcher has started this process as one of several."""
    if not all(name in os.environ for name in _LAUNCHED):
        return False
    with suppress(ValueError):
        return int(os.environ["WORLD_SIZE"]) > 1
    return False


def local_rank() -> int:
    """Number of this process among those on this machine."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))) if launched() else 0


def start_ranks(arguments: Sequence[str], count: int) -> int:
    """Run `gcdbench ARGUMENTS` on so many ranks; the exit code of the whole.

    The first rank has this process's terminal. What the others write is shown only if they die of it.
    """
    with ExitStack() as files:
        outputs = [None, *(files.enter_context(tempfile.TemporaryFile()) for _ in range(1, count))]
        port = free_port()
        ranks = [_start(arguments, rank, count, port, outputs[rank]) for rank in range(count)]
        try:
            with _passing_on(ranks):
                _wait(ranks)
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
        return _verdict(ranks, outputs)


def rank_environment(rank: int, count: int, port: int) -> dict[str, str]:
    """What makes a process on this machine a rank; the port is where they find each other."""
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
        "MASTER_PORT": str(port),
        PARENT: str(os.getpid()),
    }


def _start(arguments: Sequence[str], rank: int, count: int, port: int, output: IO[bytes] | None) -> Any:
    return subprocess.Popen(
        [sys.executable, "-m", "gcdbench", *arguments],
        env=rank_environment(rank, count, port),
        stdin=None if rank == 0 else subprocess.DEVNULL,
        stdout=None if rank == 0 else subprocess.DEVNULL,
        stderr=None if rank == 0 else output,
        start_new_session=True,  # signals reach them through this process, each once
    )


@contextmanager
def _passing_on(ranks: Sequence[Any]) -> Iterator[None]:
    """Signals that ask this process to end are passed on to all ranks, which save the run and end."""

    def pass_on(number: int, _: Any) -> None:
        for process in ranks:
            if process.poll() is None:
                process.send_signal(number)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # One that is ignored (`nohup`) stays ignored.
    before = {n: signal.signal(n, pass_on) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(ranks: Sequence[Any]) -> None:
    """Until all have ended; one that ends badly takes the others with it, after a while."""
    failed: float | None = None
    while any(process.poll() is None for process in ranks):
        time.sleep(0.05)
        if failed is None and any(process.poll() for process in ranks):
            failed = time.monotonic()
        if failed is not None and time.monotonic() - failed > GRACE:
            for process in ranks:
                if process.poll() is None:
                    process.kill()


def _verdict(ranks: Sequence[Any], outputs: Sequence[IO[bytes] | None]) -> int:
    """The first rank's exit code, which has said why; where it could not, this says so."""
    codes = [process.returncode for process in ranks]
    if codes[0] > 0 or not any(codes):
        return int(codes[0])
    rank = next(number for number, code in enumerate(codes) if code)
    how = f"was ended by signal {-codes[rank]}" if codes[rank] < 0 else f"ended with code {codes[rank]}"
    last = _last_line(outputs[rank])
    print(
        f"Error: Rank {rank} of {len(ranks)} {how}{f' ({last})' if last else ''}. The last checkpoint of the run is "
        "kept; the same command goes on from it.",
        file=sys.stderr,
    )
    return LOST


def _last_line(output: IO[bytes] | None) -> str:
    if output is None:
        return ""
    output.seek(0)
    lines = output.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else ""


def free_port() -> int:
    """A port of this machine that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
