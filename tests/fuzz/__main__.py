"""Runs the fuzz targets in processes of their own, so that a crash or a hang is a finding and not the end."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import mmap
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from random import Random

import click

HANG = 10
"""Seconds that one case may take."""
MEMORY = 3 << 30
"""Bytes a process may take beyond what it has at the start."""


def run_cases(name: str, cases: range, seed: int, root: Path, shared: mmap.mmap, findings: Path) -> None:
    """In a child: case by case; the number of the current one is in shared memory for whoever survives us."""
    import resource

    from gcdbench.errors import GcdbenchError
    from tests.fuzz.guard import Escaped, Guard
    from tests.fuzz.targets import TARGETS

    target = next(t for t in TARGETS if t.name == name)(root)  # type: ignore[attr-defined]
    target.seeds  # noqa: B018  # made before anything is watched
    _warm(target)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    guard = Guard(root)
    warnings.simplefilter("ignore")
    for number in cases:
        shared[:16] = struct.pack("qd", number, time.monotonic())
        random = Random(f"{seed}/{name}/{number}")
        target.prepare(target.case(random), random)
        try:
            guard.armed = True
            target.read()
        except GcdbenchError:
            pass
        except (Escaped, Exception) as fault:
            guard.armed = False
            with findings.open("a") as stream:
                trace = traceback.format_exc().strip().splitlines()[-6:]
                stream.write(json.dumps([name, number, f"{type(fault).__name__}: {str(fault)[:200]}", trace]) + "\n")
        finally:
            guard.armed = False
    shared[:16] = struct.pack("qd", cases.stop, time.monotonic())


def _warm(target: object) -> None:
    """Imports happen before memory is limited."""
    for number in range(3):
        random = Random(number)
        target.prepare(target.case(random), random)  # type: ignore[attr-defined]
        try:
            target.read()  # type: ignore[attr-defined]
        except Exception:
            continue


class Worker:
    """A child at work on a range of cases; replaced when it dies."""

    def __init__(self, name: str, cases: range, seed: int, root: Path, findings: Path) -> None:
        self.name, self.cases, self.seed, self.root, self.findings = name, cases, seed, root, findings
        self.shared = mmap.mmap(-1, 16)
        self.deaths = 0
        self._start(cases)

    def _start(self, cases: range) -> None:
        self.shared[:16] = struct.pack("qd", cases.start, time.monotonic())
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 2)
                run_cases(self.name, cases, self.seed, self.root, self.shared, self.findings)
                code = 0
            finally:
                os._exit(code)

    def over(self) -> bool:
        """Whether all cases are done; a crash or hang is noted and the rest continues in a new process."""
        number, since = struct.unpack("qd", self.shared[:16])
        done, status = os.waitpid(self.pid, os.WNOHANG)
        if not done and time.monotonic() - since <= HANG:
            return False
        if not done:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            what = f"hung for {HANG} seconds"
        elif os.waitstatus_to_exitcode(status) == 0:
            return True
        else:
            what = f"ended with {os.waitstatus_to_exitcode(status)}"
        with self.findings.open("a") as stream:
            stream.write(json.dumps([self.name, number, what, []]) + "\n")
        self.deaths += 1
        if self.deaths > 20 or number + 1 >= self.cases.stop:
            return True
        self._start(range(number + 1, self.cases.stop))
        return False


def plan(total: int, only: tuple[str, ...]) -> dict[str, int]:
    """Cases per target."""
    from tests.fuzz.targets import TARGETS

    chosen = {t.name: t.share for t in TARGETS if not only or t.name in only}  # type: ignore[attr-defined]
    return {name: max(1, total * share // sum(chosen.values())) for name, share in chosen.items()}


@click.command()
@click.option("--cases", type=int, default=100_000, show_default=True)
@click.option("--jobs", type=int, default=2, show_default=True)
@click.option("--only", multiple=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--case", type=int, help="Show one case of the target named with --only.")
@click.option("--json", "as_json", is_flag=True)
def main(cases: int, jobs: int, only: tuple[str, ...], seed: int, case: int | None, as_json: bool) -> None:
    """Read damaged files with every parser; print a table and every finding."""
    import gcdbench_rlcd  # noqa: F401
    import torch

    import gcdbench.experiments.jobs  # noqa: F401  # imported before forking
    from tests.fuzz.targets import TARGETS

    torch.set_num_threads(1)
    if case is not None:
        (kind,) = (t for t in TARGETS if t.name in only)  # type: ignore[attr-defined]
        target, random = kind(Path(tempfile.mkdtemp())), Random(f"{seed}/{only[0]}/{case}")
        content = target.case(random)
        print(content)
        target.prepare(content, random)
        target.read()
        return
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="gcdbench-fuzz-", dir=memory if memory.is_dir() else None))
    findings = folder / "findings.jsonl"
    findings.touch()
    counts, started = plan(cases, only), time.monotonic()
    waiting = list(counts.items())
    working: list[Worker] = []
    taken: dict[str, float] = {}
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                name, count = waiting.pop(0)
                taken[name] = time.monotonic()
                working.append(Worker(name, range(count), seed, folder / name.replace(" ", "-"), findings))
            for worker in list(working):
                if worker.over():
                    working.remove(worker)
                    taken[worker.name] = time.monotonic() - taken[worker.name]
            time.sleep(0.02)
        found = [json.loads(line) for line in findings.read_text().splitlines()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(json.dumps({"cases": counts, "findings": found}))
    else:
        from gcdbench.cli.output import print_table

        per = {name: [f for f in found if f[0] == name] for name in counts}
        rows = [[n, f"{c:,}", f"{taken[n]:.0f} s", str(len(per[n]))] for n, c in counts.items()]
        rows.append(["all", f"{sum(counts.values()):,}", f"{time.monotonic() - started:.0f} s", str(len(found))])
        print_table(f"Fuzzing, seed {seed}", ["Parser", "Cases", "Time", "Findings"], rows)
        for name, number, what, trace in found[:40]:
            print(f"{name}, case {number}: {what}", *trace, sep="\n    ")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
