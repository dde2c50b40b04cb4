"""Following jobs: those that are taken away are given again, as often as is wished; whoever launches may be broken."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from gcdbench.contracts import JobState, Launcher, LaunchJob, Resources
from gcdbench.errors import PluginError
from gcdbench.experiments import monitor as module
from gcdbench.experiments.monitor import Followed, follow, last_words
from gcdbench.experiments.sweep_plan import SweepJob


@dataclass(frozen=True)
class NoConfig:
    """Nothing."""


class Script(Launcher):
    """Plays a list of states for each job."""

    name = "script"
    Config = NoConfig

    def __init__(self, tmp_path, **states):
        super().__init__(NoConfig(), Resources(), "cpu", tmp_path)
        self.states = {name: list(found) for name, found in states.items()}
        self.submitted: list[str] = []
        self.stopped = 0

    def submit(self, jobs):
        self.submitted += [job.name for job in jobs]

    def poll(self):
        return {n: JobState(*s[0]) if len(s) == 1 else JobState(*s.pop(0)) for n, s in self.states.items()}

    def stop(self):
        self.stopped += 1


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "EVERY", 0.0)


def jobs_of(tmp_path, *names):
    launch = LaunchJob("", ("true",), {}, tmp_path / "log")
    return [Followed(SweepJob(name, []), replace(launch, name=name)) for name in names]


def test_a_lost_job_is_given_again(tmp_path):
    jobs = jobs_of(tmp_path, "a", "b")
    states = {"a": [("running",), ("lost",), ("running",), ("ended", 0)], "b": [("waiting",), ("ended", 0)]}
    launcher = Script(tmp_path, **states)
    seen = []
    follow(jobs, launcher, lambda js: seen.append([j.state.phase for j in js]), retries=1)
    assert launcher.submitted == ["a", "b", "a"]
    assert [j.tries for j in jobs] == [2, 1]
    assert not any(j.given_up for j in jobs)
    assert launcher.stopped == 1
    assert ["waiting", "ended"] in seen


def test_a_job_that_is_lost_too_often_is_given_up(tmp_path):
    jobs = jobs_of(tmp_path, "a")
    launcher = Script(tmp_path, a=[("lost",)])
    follow(jobs, launcher, lambda js: None, retries=2)
    assert launcher.submitted == ["a"] * 3
    assert jobs[0].given_up


def test_a_job_that_ends_badly_is_not_given_again(tmp_path):
    jobs = jobs_of(tmp_path, "a")
    launcher = Script(tmp_path, a=[("ended", 5)])
    follow(jobs, launcher, lambda js: None, retries=2)
    assert launcher.submitted == ["a"]
    assert jobs[0].over
    assert not jobs[0].given_up


@pytest.mark.parametrize("hook", ["submit", "poll"])
def test_a_broken_launcher_is_told_and_stopped(hook, tmp_path, monkeypatch):
    launcher = Script(tmp_path, a=[("running",)])
    monkeypatch.setattr(launcher, hook, lambda *a: 1 / 0)
    with pytest.raises(PluginError, match=f"launcher 'script' failed in {hook}: ZeroDivisionError"):
        follow(jobs_of(tmp_path, "a"), launcher, lambda js: None, retries=0)
    assert launcher.stopped == 1


def test_interrupted_it_stops_what_it_has_started(tmp_path):
    launcher = Script(tmp_path, a=[("running",)])

    def interrupt(jobs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(jobs_of(tmp_path, "a"), launcher, interrupt, retries=0)
    assert launcher.stopped == 1


def test_last_words(tmp_path):
    (tmp_path / "log").write_bytes(b"one\ntwo \xff\n\n")
    assert last_words(tmp_path / "log").startswith("two")
    assert last_words(tmp_path / "none") == ""
