"""Live progress on standard error: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from gcdbench.cli.output import err, print_words
from gcdbench.errors import GcdbenchError
from gcdbench.system.observer import Observer, RunName, Step
from gcdbench.system.parallel.join import current

REFRESH = 0.5
"""Seconds between refreshes in a terminal."""
WITH_BAR, WITH_RATE = 120, 90
"""Characters in a line from which on there is room for a bar and a rate."""
QUIET = 10.0
"""Seconds between lines where there is no terminal."""


def columns(width: int) -> list[ProgressColumn]:
    """What fits a line: times are never cut; the bar goes first, then the rate, and what is trained gets the rest."""
    whole = Column(no_wrap=True)
    name = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
    texts = ("{task.fields[where]}", "{task.fields[rate]}", "gone,", "left")
    where, rate, gone, left = (TextColumn(text, table_column=whole) for text in texts)
    bar = [BarColumn(bar_width=24)] if width >= WITH_BAR else []
    fast = [rate] if width >= WITH_RATE else []
    return [name, *bar, where, *fast, TimeElapsedColumn(whole), gone, TimeRemainingColumn(table_column=whole), left]


class Display(Observer):
    """Shows epoch, step, loss terms, rate and time left."""

    def __init__(self, console: Console | None = None, sole: bool = False) -> None:
        """``sole``: there is one run only, whose fault the command itself reports."""
        self.console, self.sole = console or err(), sole
        self.bar = Progress(*columns(self.console.width), console=self.console, expand=True)
        self.terms = Text("")
        self.live: Live | None = None
        self.task: Any = None
        self.side: Any = None
        self.last = 0.0
        self.marks: tuple[float, int] = (0.0, 0)

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self.live = Live(Group(self.bar, self.terms), console=self.console, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def started(self, runs: Sequence[RunName], resumed_at: int) -> None:
        """A new bar."""
        names = ", ".join(dict.fromkeys(run.method for run in runs))
        lanes = f" in {len(runs)} lanes" if len(runs) > 1 else f", seed {runs[0].seed}"
        name = f"{names} on {runs[0].dataset}{lanes}"
        if resumed_at:
            self.console.print(f"{name}: resuming after epoch {resumed_at}", markup=False)
        elif self.live is None:
            self.console.print(f"{name}: training {max(run.epochs for run in runs)} epochs", markup=False)
        self._drop()
        self.task = self.bar.add_task(name, total=None, where="", rate="")
        self.marks = (time.monotonic(), -1)
        self.last = time.monotonic()

    def step(self, step: Step) -> None:
        """Refresh now and then."""
        now = time.monotonic()
        done = step.epoch * step.steps_per_epoch + step.step + 1
        if self.marks[1] < 0:
            self.marks = (now, done)
        if now - self.last < (REFRESH if self.live else QUIET):
            return
        self.last = now
        since, first = self.marks
        rate = (done - first) / (now - since) if now > since else 0.0
        total = step.epochs * step.steps_per_epoch
        where = f"epoch {step.epoch + 1}/{step.epochs} step {step.step + 1}/{step.steps_per_epoch}"
        terms = _terms(step)
        if self.live is None:
            left = (total - done) / rate if rate else 0.0
            self.console.print(f"  {where}  {terms}  {_rate(rate)}  {left:.0f} s left", markup=False)
        elif self.task is not None:
            self.bar.update(self.task, completed=done, total=total, where=where, rate=_rate(rate))
            self.terms.plain = "  " + terms

    def working(self, name: str, done: int, total: int) -> None:
        """A bar of its own, or a line now and then."""
        now = time.monotonic()
        if now - self.last < (REFRESH if self.live else QUIET) and done < total:
            return
        self.last = now
        if self.live is None:
            self.console.print(f"  {name}: {done:,} of {total:,}", markup=False)
            return
        if self.side is None:
            self.side = self.bar.add_task(name, total=total, where="", rate="")
        self.bar.update(self.side, description=name, completed=done, total=total, where=f"{done:,}/{total:,}")
        if done >= total:
            self.bar.remove_task(self.side)
            self.side = None

    def dropped(self, run: RunName, fault: GcdbenchError) -> None:
        """A line that stays."""
        if self.sole:
            return
        self.console.print(f"{run.method} ({run.recipe}), seed {run.seed} stopped: {fault}", markup=False)

    def announce(self, text: str) -> None:
        """A line that stays above the bar."""
        print_words(self.console, text)

    def phase(self, name: str) -> None:
        """What else happens."""
        self.terms.plain = f"  {name} ..."

    def warn(self, message: str) -> None:
        """A sentence above the bar."""
        self.console.print(f"Note: {message}", markup=False)

    def finished(self) -> None:
        """Remove the bar."""
        self._drop()
        self.terms.plain = ""

    def _drop(self) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
            self.task = None


def _terms(step: Step) -> str:
    """Every loss term of a single lane, the total of each of several."""
    if len(step.lanes) == 1:
        return "  ".join(f"{name} {value:.3f}" for name, value in step.lanes[0][1].items())
    return "  ".join(f"{run.method} {losses['total']:.3f}" for run, losses in step.lanes if "total" in losses)


def _rate(steps: float) -> str:
    """`5.3 steps/s`, or `20.1 s/step` where steps are slow."""
    return f"{steps:.1f} steps/s" if steps >= 1 or steps == 0 else f"{1 / steps:.1f} s/step"


class Hidden(Observer):
    """Shows nothing: for ranks other than the first."""

    def __enter__(self) -> Hidden:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def show_progress(quiet: bool = False, sole: bool = False) -> Display | Hidden:
    """What shows a command's progress; ``quiet`` leaves the terminal to somebody else."""
    return Display(sole=sole) if current().first and not quiet else Hidden()
