"""Submits the jobs of a sweep and follows them to the end; a job that was taken away is given again."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gcdbench.contracts import JobState, Launcher, LaunchJob
from gcdbench.errors import PluginError
from gcdbench.experiments.job_file import JobEnvironment, JobFile
from gcdbench.experiments.launchers.command import SAVING
from gcdbench.experiments.sweep_plan import SweepJob, SweepRun
from gcdbench.system.locks import locked
from gcdbench.system.plugin_call import plugin_call

EVERY = 1.0
"""Seconds between looks at the jobs."""


@dataclass
class Followed:
    """A job on its way."""

    job: SweepJob
    launch: LaunchJob
    state: JobState = field(default_factory=lambda: JobState("waiting"))
    tries: int = 1
    given_up: bool = False
    _sizes: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.given_up or self.state.phase == "ended"

    def epochs(self) -> tuple[int, int]:
        """Epochs done and in all, over its runs."""
        return sum(map(self._done, self.job.runs)), sum(run.epochs for run in self.job.runs)

    def _done(self, run: SweepRun) -> int:
        """Lines of `metrics.jsonl`, read again only when it has grown."""
        path = run.folder.path / "metrics.jsonl"
        try:
            size = path.stat().st_size
        except OSError:
            return run.epochs if run.folder.finished else 0
        known = self._sizes.get(run.run_id)
        if known is None or known[0] != size:
            self._sizes[run.run_id] = (size, len(run.folder.epochs()))
        return min(run.epochs, self._sizes[run.run_id][1])


Watch = Callable[[Sequence[Followed]], None]
"""Told how all jobs stand, about once a second."""


def write_jobs(jobs: Sequence[SweepJob], environment: JobEnvironment, folder: Path) -> list[Followed]:
    """A file and a command for each job. Those of earlier sweeps stay: some may still be queued somewhere."""
    found = []
    for job in jobs:
        path = folder / "jobs" / f"{job.name}.json"
        ids = tuple(run.run_id for run in job.runs)
        JobFile(environment, tuple(run.request for run in job.runs), ids).write(path)
        # The same interpreter on every machine: a cluster's nodes share the environment as they share the runs.
        command = (sys.executable, "-P", "-m", "gcdbench", "job", str(path))
        variables = {"GCDBENCH_CACHE": environment.cache, "PYTHONUNBUFFERED": "1"}
        launch = LaunchJob(job.name, command, variables, folder / "logs" / f"{job.name}.log")
        found.append(Followed(job, launch))
    return found


@contextmanager
def sole(folder: Path, announce: Callable[[str], None]) -> Iterator[None]:
    """One process follows a sweep at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", lambda who: announce(f"{who} follows this sweep already; waiting for it to end.")):
        yield


def follow(jobs: Sequence[Followed], launcher: Launcher, watch: Watch, retries: int) -> None:
    """Until every job has ended or has been given up. However this ends, the launcher is stopped."""
    by_name = {one.job.name: one for one in jobs}

    def submit(some: Sequence[Followed]) -> None:
        with plugin_call(launcher.name, "submit", kind="launcher"):
            launcher.submit([one.launch for one in some])

    try:
        submit(jobs)
        while True:
            with plugin_call(launcher.name, "poll", kind="launcher"):
                states = dict(launcher.poll())
            strange = next((name for name in states if name not in by_name), None)
            if strange is not None:
                raise PluginError(f"The launcher '{launcher.name}' speaks of a job '{strange}' that it was not given.")
            for name, state in states.items():
                by_name[name].state = state
            lost = [one for one in jobs if one.state.phase == "lost" and not one.given_up]
            again = [one for one in lost if one.tries <= retries]
            for one in lost:
                one.tries += one in again
                one.given_up = one not in again
            if again:
                submit(again)
                for one in again:
                    one.state = JobState("waiting")
            watch(jobs)
            if all(one.over for one in jobs):
                return
            time.sleep(EVERY)
    finally:
        with plugin_call(launcher.name, "stop", kind="launcher"):
            launcher.stop()
        _wait_until_saved(jobs)


def _wait_until_saved(jobs: Sequence[Followed]) -> None:
    """Runs that were asked to end take a moment to save; whoever starts the sweep again must not meet them."""
    ends = time.monotonic() + SAVING
    waiting = [run for one in jobs if one.state.phase in ("waiting", "running", "lost") for run in one.job.runs]
    while time.monotonic() < ends and any(run.folder.worker for run in waiting):
        time.sleep(0.2)


def last_words(log: Path, most: int = 300) -> str:
    """The last line a job has printed."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - 8192))
            lines = stream.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][-most:] if lines else ""
