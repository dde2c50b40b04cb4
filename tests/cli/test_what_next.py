"""What a command says besides its answer: what was there before, what to look at next, where a plugin went wrong."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

QUICK = ("--dataset", "digits", "--epochs", "1")
pytestmark = pytest.mark.usefixtures("few_digits")


def in_a_terminal(*words, cwd, typed=b"", width=80):
    """What a command prints whose standard streams are a terminal of its own."""
    main, side = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(width), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gcdbench", *map(str, words)]
    process = subprocess.Popen(command, cwd=cwd, env=environment, stdin=side, stdout=side, stderr=side, close_fds=True)
    os.close(side)
    if typed:
        os.write(main, typed)
    said = b""
    while True:
        try:
            part = os.read(main, 4096)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        said += part
    os.close(main)
    return process.wait(), said.decode(errors="replace")


def test_a_finished_run_says_so_and_where_it_is(cli, tmp_path):
    first = cli("run", "--method", "supref", *QUICK)
    assert first.code == 0, first.stderr
    assert "not repeated" not in first.stdout
    (run,) = (tmp_path / "runs/supref/digits").iterdir()
    assert f"Run directory: runs/supref/digits/{run.name}" in first.stdout
    again = cli("run", "--method", "supref", *QUICK)
    assert "Seed 0 was finished 20" in again.stdout
    assert "is not repeated (--force does)" in again.stdout
    assert again.stdout.count(run.name) >= 2


@pytest.mark.slow
def test_a_terminal_is_shown_what_to_look_at_next(tmp_path):
    code, said = in_a_terminal("list", "datasets", "--no-check", cwd=tmp_path)
    assert code == 0, said
    assert "Next: gcdbench data layout D" in said
    assert (
        "Next:"
        not in subprocess.run(
            [sys.executable, "-m", "gcdbench", "list", "datasets", "--no-check"], capture_output=True, text=True
        ).stderr
    )


PLUGIN = """
from gcdbench_simgcd import SimGCD

def helper():
    return 1 / 0

class Broken(SimGCD):
    '''SimGCD that fails.'''
    def forward(self, batch, t):
        return helper()
"""


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A method that is installed and fails."""
    site = tmp_path / "site"
    (site / "broken_method-1.dist-info").mkdir(parents=True)
    (site / "broken_method.py").write_text(PLUGIN)
    (site / "broken_method-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: broken-method\nVersion: 1\n")
    (site / "broken_method-1.dist-info/entry_points.txt").write_text(
        "[gcdbench.methods]\nbroken = broken_method:Broken\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    return tmp_path


def test_the_line_of_the_plugin_is_named(gcdbench, broken):
    answer = gcdbench("run", "--method", "broken", *QUICK)
    assert answer.code == 5
    assert (
        "failed in forward: ZeroDivisionError: division by zero (site/broken_method.py:5, in helper)" in answer.stderr
    )
    assert "Traceback" not in answer.stderr
    whole = gcdbench("run", "--method", "broken", *QUICK, "--traceback")
    assert whole.code == 5
    assert "Traceback (most recent call last)" in whole.stderr
    assert "return 1 / 0" in whole.stderr
    checked = gcdbench("check", "broken", "--only", "losses")
    assert checked.code == 1
    assert "broken_method.py:5, in helper" in checked.stdout.replace("\n", "").replace("│", "").replace("  ", "")


@pytest.mark.slow
def test_a_debugger_opens_where_the_plugin_failed(broken):
    code, said = in_a_terminal("run", "--method", "broken", *QUICK, "--pdb", cwd=broken, typed=b"p 40 + 2\nq\n")
    assert code == 5, said
    assert "-> return 1 / 0" in said
    assert "42" in said


def test_a_debugger_needs_a_terminal(gcdbench, broken):
    answer = gcdbench("run", "--method", "broken", *QUICK, "--pdb")
    assert answer.code == 2
    assert "--pdb needs a terminal" in answer.stderr


def test_a_fault_of_a_run_is_said_once(gcdbench, broken):
    answer = gcdbench("run", "--method", "broken", *QUICK)
    assert answer.stderr.count("division by zero") == 1


def test_an_import_that_fails_is_placed(gcdbench, broken):
    (broken / "site/broken_method.py").write_text("import nosuchmodule\n")
    answer = gcdbench("run", "--method", "broken", *QUICK)
    assert answer.code == 5
    assert "No module named 'nosuchmodule' (site/broken_method.py:1" in answer.stderr


def test_one_broken_experiment_hides_no_other(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/mine.toml").write_text('[experiment]\ntitle = "Mine"\n[[row]]\nmethod = "simgcd"\n')
    answer = cli("list", "experiments")
    assert answer.code == 0, answer.stderr
    assert "ablation" in answer.stdout
    assert "row 1.key is missing" in answer.stderr
