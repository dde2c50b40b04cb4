"""What `gcdbench sweep` shows: the plan, all jobs in one live table, the cost of a sweep that is not run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gcdbench.analysis.table import markdown
from gcdbench.cli.output import err, plain, print_words
from gcdbench.cli.terminal_table import print_columns

if TYPE_CHECKING:
    from gcdbench.contracts import Resources
    from gcdbench.experiments.cost import SweepCost
    from gcdbench.experiments.monitor import Followed
    from gcdbench.experiments.sweep_plan import SweepPlan, SweepRun

QUIET = 30.0
"""Seconds between lines where there is no terminal."""


def print_plan(plan: SweepPlan, resources: Resources | None) -> None:
    """On standard error: the answer is the table at the end."""
    console = err()
    if plan.jobs:
        rows = []
        for job in plan.jobs:
            methods = ", ".join(dict.fromkeys(f"{run.method}:{run.recipe}" for run in job.runs))
            epochs = str(sum(run.epochs for run in job.runs))
            rows.append([Text(plain(cell)) for cell in (job.name, str(len(job.runs)), methods, epochs)])
        print_words(console, f"{plan.experiment.title}: jobs")
        print_columns(console, ["Job", "Runs", "Methods", "Epochs"], rows, style=box.HEAVY_HEAD)
    states = ", ".join(
        f"{plan.count(s)} {s}" for s in ("finished", "unfinished", "new", "failed", "busy") if plan.count(s)
    )
    sentence = f"{len(plan.runs)} runs ({states or 'none'}); "
    waiting = sum(len(job.runs) for job in plan.jobs)
    sentence += f"{waiting} to make in {len(plan.jobs)} jobs" if waiting else "nothing to make"
    sentence += "." if resources is None else f", {resources.gpus:g} GPUs and {resources.cpus} cores each."
    print_words(console, sentence)
    for run in plan.runs:
        if run.status == "failed":
            print_words(console, f"Failed before: {_spelt(run)}: {run.folder.failure}")
        if run.status == "busy":
            print_words(console, f"Left to {run.folder.worker}: {_spelt(run)}")
    reasons: dict[str, list[str]] = {}
    for what, fault in plan.cannot.items():
        reasons.setdefault(str(fault), []).append(what)
    for reason, names in reasons.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        print_words(console, f"Cannot run: {'; '.join(names[:3])}{more}. {reason}")


def _spelt(run: SweepRun) -> str:
    return f"{run.label} on {run.dataset}, {run.backbone}, seed {run.seed}"


class JobTable:
    """All jobs while they run: one live table in a terminal; elsewhere a line when a job changes, or now and then."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live: Live | None = None
        self.shown: dict[str, str] = {}
        self.last = time.monotonic()

    def __enter__(self) -> JobTable:
        if self.console.is_terminal:
            self.live = Live(console=self.console, auto_refresh=False, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, jobs: Sequence[Followed]) -> None:
        """How they stand."""
        if self.live is not None:
            self.live.update(self._drawn(jobs), refresh=True)
            return
        for one in jobs:
            now = _phase(one)
            if self.shown.get(one.job.name) != now:
                self.shown[one.job.name] = now
                print_words(self.console, f"{one.job.name}: {now}")
        if time.monotonic() - self.last > QUIET:
            self.last = time.monotonic()
            done, total = (sum(column) for column in zip(*(one.epochs() for one in jobs), strict=True))
            over = sum(one.over for one in jobs)
            self.console.print(f"  {over} of {len(jobs)} jobs, {done:,} of {total:,} epochs", markup=False)

    def _drawn(self, jobs: Sequence[Followed]) -> Table:
        """Those that run, then as many of the others as there is room for."""
        order = {"running": 0, "lost": 1, "waiting": 2, "ended": 3}
        room = max(5, self.console.height - 8)
        listed = sorted(jobs, key=lambda one: order[one.state.phase])
        table = _table(f"{sum(one.over for one in jobs)} of {len(jobs)} jobs", ["Job", "State", "Runs", "Epochs"])
        for one in listed[:room]:
            done, total = one.epochs()
            runs = f"{one.job.finished}/{len(one.job.runs)}"
            table.add_row(*(Text(plain(cell)) for cell in (one.job.name, _phase(one), runs, f"{done}/{total}")))
        if len(listed) > room:
            table.add_row(f"and {len(listed) - room} more", "", "", "")
        return table


def _phase(one: Followed) -> str:
    state = one.state
    where = f" ({state.where})" if state.where else ""
    again = f", attempt {one.tries}" if one.tries > 1 else ""
    if one.given_up:
        return f"given up after {one.tries} attempts{where} {state.reason}".rstrip()
    if state.phase == "ended":
        return f"{'done' if not state.code else f'ended with code {state.code}'}{where}{again}"
    return f"{state.phase}{where}{again}"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=Text(plain(title)), title_justify="left")
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    return table


def print_cost(cost: SweepCost, as_markdown: bool) -> None:
    """Tables of what a sweep costs, and what was assumed."""
    from gcdbench.cli.formats import print_sheet
    from gcdbench.experiments.cost_table import cost_sheets

    sheets = cost_sheets(cost)
    if as_markdown:
        click.echo("\n".join(map(markdown, sheets)), nl=False)
        return
    for sheet in sheets:
        print_sheet(sheet)
