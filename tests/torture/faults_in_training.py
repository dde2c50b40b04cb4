"""Faults of images, stores, memory, methods and the clock."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from typing import Any

from tests.torture.events import at_event
from tests.torture.faults import Stage, damage, expect, fault

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


@fault("images change while a run continues", load="photos")
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
        from gcdbench.data.formats import decoding

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
    damage(path, stage, stage.random.choice(["torn", "flipped"]))
    answer = stage.load.start(stage.runs).wait()
    shutil.rmtree(path.parent)
    return expect(answer, (0, 4), "is damaged", "Delete this folder")


# ----------------------------------------------------------------------------------------------------- training


def _odd_step(stage: Stage, action: Callable[[object, object], object]) -> Callable[[], None]:
    """At a random step of the released recipe, ``action`` is called with its losses and the step."""
    at = (stage.random.randrange(2), stage.random.randrange(6))

    def prepare() -> None:
        from gcdbench_rlcd import RLCD

        from gcdbench.runs.rehearsal import Rehearsal

        forward, rehearse, rehearsing = RLCD.forward, Rehearsal.of, []

        def quietly(self: Rehearsal, *rest: Any) -> Any:
            rehearsing.append(1)
            try:
                return rehearse(self, *rest)
            finally:
                rehearsing.pop()

        def odd(self: RLCD, batch: Any, t: Any) -> Any:
            losses = forward(self, batch, t)
            if (t.epoch, t.step) == at and self.config.pseudo_base != "predicted" and not rehearsing:
                action(losses, t)
            return losses

        RLCD.forward = odd  # type: ignore[method-assign]
        Rehearsal.of = quietly  # type: ignore[method-assign]

    return prepare


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
