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
    # Before training has begun there is nothing to save, and the system ends the process as usual.
    child = stage.load.start(stage.runs)
    time.sleep(moment(stage))
    child.signal(signal.SIGTERM)
    return expect(child.wait(), (0, 143, -15), *())


@fault("SIGTERM in the middle of training")
def terminate_training(stage: Stage) -> str | None:
    place = stage.random.randrange(stage.events)
    prepare = lambda: at_event(place, lambda: os.kill(os.getpid(), signal.SIGTERM))  # noqa: E731
    answer = stage.load.start(stage.runs, prepare).wait()
    return expect(answer, (0, 143), "Ended by a signal. What a run has done is saved")


@fault("Ctrl-C in the middle of training")
def interrupt(stage: Stage) -> str | None:
    place = stage.random.randrange(stage.events)
    prepare = lambda: at_event(place, lambda: os.kill(os.getpid(), signal.SIGINT))  # noqa: E731
    answer = stage.load.start(stage.runs, prepare).wait()
    return expect(answer, (0, 130), "Interrupted. What a run has done is saved")


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


def _damage(path: Path, stage: Stage, kind: str) -> None:
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
        _damage(path, stage, kind)
        if both and path.with_name("previous.pt").is_file():
            _damage(path.with_name("previous.pt"), stage, kind)
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


# ------------------------------------------------------------------------------------------------------- images


def _with_file(stage: Stage, content: Callable[[bytes], bytes], codes: tuple[int, ...], *words: str) -> str | None:
    """A run with one image file changed, which is then put back as it was, time and all."""
    path = stage.random.choice(stage.files)
    before, facts = path.read_bytes(), path.stat()
    try:
        path.write_bytes(content(before))
        answer = stage.load.start(stage.runs).wait()
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    return expect(answer, codes, path.name, *words)


@fault("damaged image file", load="photos")
def damaged_image(stage: Stage) -> str | None:
    kinds = (lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b"no image", lambda b: b[:40] + b"\xff" * 40 + b[80:])
    return _with_file(stage, stage.random.choice(kinds), (4,), "cannot be read")


@fault("images change while a run goes on", load="photos")
def changed_images(stage: Stage) -> str | None:
    path = stage.random.choice(stage.files)
    before, facts = path.read_bytes(), path.stat()

    def change() -> None:
        path.write_bytes(before + b"more")

    place = stage.random.randrange(stage.events)
    try:
        answer = stage.load.start(stage.runs, lambda: at_event(place, change)).wait()
        if answer[0] == 0:  # it was too late to matter, or the run began with the changed file
            return expect(answer, (0,))
        return expect(answer, (4,), "have changed since this run began")
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@fault("a decoding process dies", load="packed photos")
def dead_worker(stage: Stage) -> str | None:
    shutil.rmtree(stage.cache, ignore_errors=True)
    row, mark = stage.random.randrange(len(stage.files)), stage.runs / "died"

    def prepare() -> None:
        from gcdbench.data import decoding

        original = decoding._Work.__getitem__

        def die_once(self: object, number: int) -> object:
            if number == row and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, number)  # type: ignore[arg-type]

        decoding._Work.__getitem__ = die_once  # type: ignore[method-assign, assignment]

    answer = stage.load.start(stage.runs, prepare).wait()
    return expect(answer, (0,)) or (None if mark.exists() else "no process died")


@fault("damaged token store", load="stored")
def damaged_store(stage: Stage) -> str | None:
    found = sorted(stage.cache.glob("tokens/*/tokens.bin")) or sorted(stage.cache.glob("tokens/*"))
    if not found:
        return "no store to damage"
    path = stage.random.choice(found)
    _damage(path, stage, stage.random.choice(["torn", "flipped"]))
    answer = stage.load.start(stage.runs).wait()
    shutil.rmtree(path.parent)
    return expect(answer, (0, 4), "is damaged", "Delete this folder")


# ----------------------------------------------------------------------------------------------------- training


def _odd_step(stage: Stage, action: Callable[[object, object], object]) -> Callable[[], None]:
    """At a random step of the released recipe, ``action`` is called with its losses and the step."""
    at = (stage.random.randrange(2), stage.random.randrange(6))

    def prepare() -> None:
        from gcdbench_rlcd import RLCD

        original = RLCD.forward

        def forward(self: RLCD, batch: object, t: object) -> object:
            losses = original(self, batch, t)  # type: ignore[arg-type]
            real = t.steps_per_epoch and (t.epoch, t.step) == at  # type: ignore[attr-defined]
            if real and self.config.pseudo_base != "predicted" and _training(t):
                action(losses, t)
            return losses

        RLCD.forward = forward  # type: ignore[method-assign, assignment]

    return prepare


_seen: dict[tuple[int, int], int] = {}


def _training(t: object) -> bool:
    """Not the rehearsal, which comes first."""
    at = (t.epoch, t.step)  # type: ignore[attr-defined]
    _seen[at] = _seen.get(at, 0) + 1
    return _seen[at] > 1 or at[0] > 0 or at[1] > 1


@fault("a loss is not finite")
def not_finite(stage: Stage) -> str | None:
    value = stage.random.choice([float("nan"), float("inf")])
    prepare = _odd_step(stage, lambda losses, t: losses.add("odd", losses["main_ce"].value * value))  # type: ignore[attr-defined]
    answer = stage.load.start(stage.runs, prepare).wait()
    if not list(stage.runs.glob("*/*/*/not-finite.json")):
        return f"no evidence was kept: {answer}"
    return expect(answer, (6,), "The loss term 'odd' of 'rlcd' is not finite at step", "1 of 2 runs failed")


@fault("out of memory in a method")
def no_memory(stage: Stage) -> str | None:
    import torch

    prepare = _odd_step(stage, lambda losses, t: torch.empty(1 << 60, dtype=torch.uint8))
    answer = stage.load.start(stage.runs, prepare).wait()
    return expect(answer, (6,), "Out of memory in forward of 'rlcd'", "Lower train.batch_size")


@fault("out of memory in the trunk")
def no_memory_in_trunk(stage: Stage) -> str | None:
    most = stage.random.choice([16, 32, 64])

    def prepare() -> None:
        import torch

        from gcdbench.backbone.vit import Trunk

        original = Trunk.raw

        def raw(self: Trunk, images: torch.Tensor) -> torch.Tensor:
            if len(images) > most:
                raise torch.OutOfMemoryError("pretend")
            return original(self, images)

        Trunk.raw = raw  # type: ignore[method-assign]

    return expect(stage.load.start(stage.runs, prepare).wait(), (0,))


HOOKS = (
    "__init__",
    "stages",
    "optimizers",
    "on_epoch_start",
    "forward",
    "active",
    "on_step_end",
    "state_dict",
    "predict",
)


@fault("a plugin raises in a hook")
def raising_plugin(stage: Stage) -> str | None:
    hook, wait = stage.random.choice(HOOKS), stage.random.randrange(12)

    def prepare() -> None:
        from gcdbench_rlcd import RLCD

        original, calls = getattr(RLCD, hook), []

        def fail(self: RLCD, *rest: object, **more: object) -> object:
            config = rest[0] if hook == "__init__" else self.config
            if config.pseudo_base != "predicted":  # type: ignore[union-attr, attr-defined]
                calls.append(1)
                if len(calls) > wait or hook in ("__init__", "stages", "optimizers"):
                    raise ZeroDivisionError("oops")
            return original(self, *rest, **more)

        setattr(RLCD, hook, fail)

    answer = stage.load.start(stage.runs, prepare).wait()
    return expect(answer, (0, 5), f"The method 'rlcd' failed in {hook}: ZeroDivisionError: oops")


@fault("the clock jumps")
def clock(stage: Stage) -> str | None:
    def prepare() -> None:
        real = time.time

        def jumping() -> float:
            return max(0.0, real() + stage.random.uniform(-1e9, 1e9))

        time.time = jumping
        time.strftime = lambda form, *_: "1970-01-01 00:00:00"  # type: ignore[assignment]

    answer = stage.load.start(stage.runs, prepare).wait()
    for path in stage.runs.rglob("*"):
        os.utime(path, (stage.random.uniform(0, 4e9),) * 2)
    return expect(answer, (0,))


def all_events(load: Workload, runs: Path) -> int:
    """How many times an undisturbed run touches a file that it writes."""
    counter = runs.parent / "events"
    code, text = load.start(runs, lambda: count_events(counter)).wait()
    if code:
        raise RuntimeError(text)
    return int(counter.read_text())
