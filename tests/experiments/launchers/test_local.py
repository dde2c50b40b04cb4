"""Packing jobs on one machine, and commands in processes of their own."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time

import pytest

from gcdbench.contracts import LaunchJob, Resources
from gcdbench.errors import UsageError
from gcdbench.experiments.launchers import local
from gcdbench.experiments.launchers.command import MARK, Command, was_taken_away
from gcdbench.experiments.launchers.local import LocalConfig, LocalLauncher, slots


@pytest.mark.parametrize(
    ("wanted", "gpus", "cores", "parallel", "found"),
    [
        (Resources(0, 1), 0, 4, None, [()] * 4),
        (Resources(0, 2), 0, 4, None, [()] * 2),
        (Resources(0, 1), 8, 4, 3, [()] * 3),
        (Resources(1, 1), 2, 8, None, [(0,), (1,)]),
        (Resources(2, 1), 5, 8, None, [(0, 1), (2, 3)]),
        (Resources(0.5, 1), 2, 8, None, [(0,), (1,), (0,), (1,)]),
        (Resources(0.3, 1), 1, 8, None, [(0,)] * 3),
        (Resources(1, 4), 4, 8, None, [(0,), (1,)]),
        (Resources(1, 1), 4, 8, 1, [(0,)]),
    ],
)
def test_jobs_are_packed_on_gpus_and_cores(wanted, gpus, cores, parallel, found):
    assert [slot.gpus for slot in slots(wanted, gpus, cores, parallel)] == found


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Resources(1, 1), "1 GPUs, but torch finds 0"),
        (Resources(0, 9), "9 cores, but this machine has 4"),
        (Resources(1.5, 1), "more than one must be a whole number"),
    ],
)
def test_what_does_not_fit_is_told(wanted, words):
    with pytest.raises(UsageError, match=words):
        slots(wanted, 2 if wanted.gpus == 1.5 else 0, 4, None)


def test_defaults_follow_the_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(local, "cores", lambda: 8)
    monkeypatch.setattr(local, "gpus", lambda: 2)
    launcher = LocalLauncher(LocalConfig(), Resources(), "auto", tmp_path)
    assert (launcher.resources.gpus, launcher.resources.cpus, len(launcher.slots)) == (1, 4, 2)
    launcher = LocalLauncher(LocalConfig(), Resources(), "cpu", tmp_path)
    assert (launcher.resources.gpus, launcher.resources.cpus, len(launcher.slots)) == (0, 1, 8)
    launcher = LocalLauncher(LocalConfig(), Resources(gpus=0.5, cpus=1), "cuda", tmp_path)
    assert len(launcher.slots) == 4


def test_gpus_are_named_as_they_were_given_to_this_process(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, MIG-x")
    assert [local.visible(n) for n in range(3)] == ["5", "MIG-x", "2"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert local.visible(1) == "1"


@pytest.mark.parametrize("limit", [{"minutes": 5}, {"memory_gb": 2.0}])
def test_limits_that_cannot_be_kept_are_refused(limit, tmp_path):
    with pytest.raises(UsageError, match="no limits"):
        LocalLauncher(LocalConfig(), Resources(**limit), "cpu", tmp_path)


def job(tmp_path, name, code):
    return LaunchJob(name, (sys.executable, "-c", code), {"COLOUR": "green"}, tmp_path / f"{name}.log")


def finish(launcher, phases=("ended", "lost"), seconds=20.0):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        states = launcher.poll()
        if all(state.phase in phases for state in states.values()):
            return states
        time.sleep(0.05)
    raise AssertionError(states)


def test_jobs_run_with_their_threads_gpus_and_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "gpus", lambda: 2)
    monkeypatch.setattr(local, "cores", lambda: 2)
    launcher = LocalLauncher(LocalConfig(), Resources(), "auto", tmp_path)
    told = "import os; print(*(os.environ[n] for n in ('CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS', 'COLOUR')))"
    launcher.submit([job(tmp_path, name, told) for name in "abc"])
    states = finish(launcher)
    assert {state.code for state in states.values()} == {0}
    said = [(tmp_path / f"{name}.log").read_text().splitlines()[-1] for name in "abc"]
    assert sorted(line.split()[0] for line in said[:2]) == ["0", "1"]
    assert all(line.split()[1:] == ["1", "green"] for line in said)
    assert (tmp_path / "a.log").read_text().startswith(MARK)


def test_how_a_job_ended_is_known(tmp_path):
    launcher = LocalLauncher(LocalConfig(parallel=1), Resources(), "cpu", tmp_path)
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    codes = {"good": "pass", "bad": "raise SystemExit(5)", "killed": killed, "saved": "raise SystemExit(143)"}
    launcher.submit([job(tmp_path, name, code) for name, code in codes.items()])
    states = finish(launcher)
    found = {name: (state.phase, state.code) for name, state in states.items()}
    assert found == {"good": ("ended", 0), "bad": ("ended", 5), "killed": ("lost", -9), "saved": ("lost", 143)}
    launcher.submit([job(tmp_path, "killed", "pass")])
    assert finish(launcher)["killed"].phase == "ended"


def test_stopping_asks_jobs_to_end_and_waits_for_them(tmp_path):
    launcher = LocalLauncher(LocalConfig(), Resources(), "cpu", tmp_path)
    waits = "import signal, sys, time; say = lambda word: print(word, flush=True); "
    waits += "signal.signal(signal.SIGTERM, lambda *a: (say('saved'), sys.exit(143))); say('ready'); time.sleep(60)"
    launcher.submit([job(tmp_path, "a", waits)])
    launcher.poll()
    while "ready" not in (tmp_path / "a.log").read_text():
        time.sleep(0.05)
    launcher.stop()
    assert (tmp_path / "a.log").read_text().endswith("saved\n")


def test_a_command_is_plain_words_wherever_it_is_sent(tmp_path):
    command = Command(["true"], {"A": "b"}, str(tmp_path / "log"))
    command.start()
    copy = pickle.loads(pickle.dumps(command))
    assert copy.command == ["true"]
    assert copy.poll() is None
    assert command.wait() == 0


def test_codes_of_commands_that_were_taken_away():
    assert all(was_taken_away(code) for code in (-signal.SIGKILL, 143, 130, 129, 7))
    assert not any(was_taken_away(code) for code in (0, 1, 2, 3, 4, 5, 6))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system must tell a child that its parent died")
def test_a_command_does_not_outlive_whoever_started_it(tmp_path):
    """A worker that is killed takes its run with it, which saves what it has done."""
    child = (
        "import os, signal, sys, time; from gcdbench.system.parallel.exit_with_parent import end_with_parent;"
        "signal.signal(signal.SIGTERM, lambda *a: (print('told', flush=True), os._exit(0)));"
        "end_with_parent(); print('ready', flush=True); time.sleep(60)"
    )
    worker = (
        "import sys, time; from gcdbench.experiments.launchers.command import Command;"
        f"c = Command([sys.executable, '-c', {child!r}], {{}}, {str(tmp_path / 'log')!r}); c.start(); time.sleep(60)"
    )
    process = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", worker])
    log = tmp_path / "log"
    ends = time.monotonic() + 20
    while time.monotonic() < ends and not (log.is_file() and "ready" in log.read_text()):
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    while time.monotonic() < ends and "told" not in log.read_text():
        time.sleep(0.05)
    assert "told" in log.read_text()
