"""The real command, stopped by signals: a sentence, a documented code, and the same bits afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gcdbench.errors import EXIT_CODES
from tests.support.signals import usual_signals
from tests.torture.scene import digest

COMMAND = ("run", "--method", "rlcd", "--dataset", "digits", "--epochs", "3", "--set", "eval.every=1")


def begin(tmp_path, where, *more):
    """Later options win."""
    command = [sys.executable, "-m", "gcdbench", *COMMAND, "--runs", where, *more]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=tmp_path, stderr=pipe, stdout=pipe, text=True, preexec_fn=usual_signals)


def wait_for(tmp_path, pattern):
    for _ in range(600):
        if found := list(tmp_path.glob(pattern)):
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"no {pattern}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    process = begin(folder, "runs")
    assert process.communicate()[1] is not None
    assert process.returncode == 0
    return digest(folder / "runs")


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, "Interrupted. What a run has done is saved"),
        (signal.SIGTERM, 143, "Ended by a signal. What a run has done is saved"),
        (signal.SIGHUP, 129, "Ended by a signal. What a run has done is saved"),
    ],
)
def test_a_signal_saves_the_run(number, code, words, tmp_path, undisturbed):
    process = begin(tmp_path, "runs")
    folder = wait_for(tmp_path, "runs/rlcd/digits/*/checkpoint/last.pt").parents[1]
    process.send_signal(number)
    _, text = process.communicate()
    assert process.returncode == code
    assert code in EXIT_CODES
    assert words in text
    assert "Traceback" not in text
    assert not (folder / "record.json").exists()
    assert not list(folder.parent.glob(".*"))  # neither lock nor half a file
    again = begin(tmp_path, "runs")
    assert "resuming after epoch" in again.communicate()[1]
    assert again.returncode == 0
    assert digest(tmp_path / "runs") == undisturbed


@pytest.mark.torture
def test_two_processes_on_one_run(tmp_path):
    one = begin(tmp_path, "runs", "--epochs", "14")
    folder = wait_for(tmp_path, "runs/rlcd/digits/*/log.txt").parent
    two = begin(tmp_path, "runs", "--epochs", "14", "--json")
    out, text = two.communicate()
    assert two.returncode == 0
    assert f"Process {one.pid} on " in text
    assert "waiting for it to end" in " ".join(text.split())  # lines end where the terminal does
    assert "training" not in text  # it shows what the first has made
    one.communicate()
    assert one.returncode == 0
    record = json.loads((folder / "record.json").read_text())
    assert json.loads(out)["runs"][0]["metrics"] == record["metrics"]
    assert (folder / "log.txt").read_text().count("start, device") == 1


@pytest.mark.torture
def test_a_file_that_may_not_grow_is_a_sentence_and_what_was_saved_stays(tmp_path, undisturbed):
    """The system itself refuses to write on: `ulimit -f`, as a full disk does."""
    process = begin(tmp_path, "runs")
    wait_for(tmp_path, "runs/rlcd/digits/*/checkpoint/last.pt")
    process.send_signal(signal.SIGTERM)
    process.communicate()
    import resource

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    command = [sys.executable, "-m", "gcdbench", *COMMAND, "--runs", "runs"]
    limited = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit)
    assert limited.returncode == 1
    assert "File too large" in limited.stderr
    assert "what was saved before is intact" in limited.stderr
    assert "Traceback" not in limited.stderr
    assert begin(tmp_path, "runs").wait() == 0
    assert digest(tmp_path / "runs") == undisturbed


def test_signals_that_are_ignored_stay_ignored(tmp_path):
    """`nohup` has a meaning."""
    command = [sys.executable, "-m", "gcdbench", *COMMAND, "--runs", "runs"]

    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, preexec_fn=ignore)
    wait_for(tmp_path, "runs/rlcd/digits/*/log.txt")
    os.kill(process.pid, signal.SIGHUP)
    assert process.wait() == 0
