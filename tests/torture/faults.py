"""The faults. Each is injected into a run that has a known result; afterwards the same command must reach that result.

A fault answers with a complaint if the run did not say what it should have said, else with None.
"""

from __future__ import annotations

import errno
import os
import random as randomness
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.torture.events import at_event, count_events, fail_from, kill_at
from tests.torture.scene import Workload


@dataclass(frozen=True)
class Stage:
    """Where a fault is injected."""

    runs: Path
    load: Workload
    seconds: float
    """How long the run takes undisturbed."""
    events: int
    """How many times it touches a file that it writes."""
    random: randomness.Random
    files: tuple[Path, ...] = ()
    """Image files it reads."""
    cache: Path = Path()


Fault = Callable[[Stage], str | None]
FAULTS: dict[str, tuple[str, Fault]] = {}
"""Name to workload and function."""


def fault(name: str, load: str = "digits") -> Callable[[Fault], Fault]:
    def add(function: Fault) -> Fault:
        FAULTS[name] = (load, function)
        return function

    return add


def expect(answer: tuple[int, str], codes: tuple[int, ...], *words: str) -> str | None:
    """A complaint unless the process ended with one of these codes and, if not well, with a sentence."""
    code, text = answer
    if "Traceback" in text:
        return f"a traceback: {text.strip().splitlines()[-1]}"
    if code not in codes:
        return f"exit code {code} instead of {codes}: {text.strip()[-300:]}"
    missing = [word for word in words if word not in text]
    return f"does not say {missing}: {text.strip()[-300:]}" if code and missing else None


def moment(stage: Stage) -> float:
    return stage.random.uniform(0, 1.1 * stage.seconds)


# ------------------------------------------------------------------------------------------------------- killed


@fault("SIGKILL at a random moment")
def kill(stage: Stage) -> str | None:
    child = stage.load.start(stage.runs)
    time.sleep(moment(stage))
    child.signal(signal.SIGKILL)
    return expect(child.wait(), (0, -9))


@fault("SIGKILL at random moments, again and again")
def kill_often(stage: Stage) -> str | None:
    for _ in range(4):
        kill(stage)
    return None


@fault("SIGKILL while a file is being written")
def kill_writing(stage: Stage) -> str | None:
    place = stage.random.randrange(stage.events)
    return expect(stage.load.start(stage.runs, lambda: kill_at(place)).wait(), (0, -9))


@fault("SIGKILL with stored tokens", load="stored")
def kill_stored(stage: Stage) -> str | None:
    shutil.rmtree(stage.cache, ignore_errors=True)
    return kill(stage)


@fault("SIGTERM at a random moment")
def terminate(stage: Stage) -> str | None:
    child = stage.load.start(stage.runs)
    time.sleep(moment(stage))
    child.signal(signal.SIGTERM)
    answer = child.wait()
    if answer[0] == -15:  # before the command had begun or after it had ended, where nobody can say anything
        return None
    return expect(answer, (0, 143), "Ended by a signal. What a run has done is saved")


@fault("SIGTERM in the middle of training")
def terminate_training(stage: Stage) -> str | None:
    answer = _signalled_while_writing(stage, signal.SIGTERM)
    return expect(answer, (0, 143), "Ended by a signal. What a run has done is saved")


@fault("Ctrl-C in the middle of training")
def interrupt(stage: Stage) -> str | None:
    answer = _signalled_while_writing(stage, signal.SIGINT)
    return expect(answer, (0, 130), "Interrupted. What a run has done is saved")


def _signalled_while_writing(stage: Stage, number: int) -> tuple[int, str]:
    place = stage.random.randrange(stage.events)
    return stage.load.start(stage.runs, lambda: at_event(place, lambda: os.kill(os.getpid(), number))).wait()


# -------------------------------------------------------------------------------------------------- checkpoints


def _stopped(stage: Stage) -> list[Path]:
    """Checkpoints of a run that was killed somewhere after the first of them."""
    for _ in range(20):
        kill(stage)
        found = sorted(stage.runs.glob("*/*/*/checkpoint/last.pt"))
        if found and not list(stage.runs.glob("*/*/*/record.json")):
            return found
        if list(stage.runs.glob("*/*/*/record.json")):
            shutil.rmtree(stage.runs)
    return found


def damage(path: Path, stage: Stage, kind: str) -> None:
    content = bytearray(path.read_bytes())
    place = stage.random.randrange(len(content))
    if kind == "torn":
        content = content[:place]
    elif kind == "flipped":
        content[place] ^= 1 << stage.random.randrange(8)
    else:
        content = bytearray()
    path.write_bytes(bytes(content))


def _damaged(stage: Stage, kind: str, both: bool = False) -> str | None:
    found = _stopped(stage)
    if not found:
        return "no checkpoint to damage"
    for path in found:
        damage(path, stage, kind)
        if both and path.with_name("previous.pt").is_file():
            damage(path.with_name("previous.pt"), stage, kind)
    code, text = stage.load.finish(stage.runs)
    if code == 0 and "is damaged" not in text:
        return f"does not say that the checkpoint is damaged: {text[-300:]}"
    return expect((code, text), (0,))


@fault("torn checkpoint")
def torn(stage: Stage) -> str | None:
    return _damaged(stage, "torn")


@fault("empty checkpoint")
def empty(stage: Stage) -> str | None:
    return _damaged(stage, "empty")


@fault("checkpoint with a flipped bit")
def flipped(stage: Stage) -> str | None:
    return _damaged(stage, "flipped")


@fault("both checkpoints damaged")
def both_damaged(stage: Stage) -> str | None:
    return _damaged(stage, "flipped", both=True)


# --------------------------------------------------------------------------------------------------------- disk


@fault("disk full")
def disk_full(stage: Stage) -> str | None:
    place = stage.random.randrange(stage.events)
    answer = stage.load.start(stage.runs, lambda: fail_from(place, errno.ENOSPC)).wait()
    return expect(answer, (0, 1), "No space left on device")


@fault("disk turns read-only")
def read_only(stage: Stage) -> str | None:
    place = stage.random.randrange(stage.events)
    answer = stage.load.start(stage.runs, lambda: fail_from(place, errno.EROFS)).wait()
    return expect(answer, (0, 1), "Read-only file system")


# -------------------------------------------------------------------------------------------------------- locks


@fault("two processes on one run directory")
def two_processes(stage: Stage) -> str | None:
    one, two = stage.load.start(stage.runs), stage.load.start(stage.runs)
    return expect(one.wait(), (0,)) or expect(two.wait(), (0,))


@fault("the first of two processes is killed")
def first_killed(stage: Stage) -> str | None:
    one = stage.load.start(stage.runs)
    time.sleep(moment(stage) / 2)
    two = stage.load.start(stage.runs)
    time.sleep(moment(stage) / 2)
    one.signal(signal.SIGKILL)
    one.wait()
    return expect(two.wait(), (0,))


@fault("stale lock of a dead process")
def stale_lock(stage: Stage) -> str | None:
    complaint = kill(stage)
    for folder in stage.runs.glob("*/*/*/"):
        (folder.parent / f".{folder.name}.lock").write_text('{"process": 999999, "host": "elsewhere"}')
    return complaint


def all_events(load: Workload, runs: Path) -> int:
    """How many times an undisturbed run touches a file that it writes."""
    counter = runs.parent / "events"
    code, text = load.start(runs, lambda: count_events(counter)).wait()
    if code:
        raise RuntimeError(text)
    return int(counter.read_text())
