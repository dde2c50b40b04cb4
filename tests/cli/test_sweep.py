"""`gcdbench sweep` and `gcdbench job` through the real command."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.support.signals import usual_signals
from tests.support.sweeps import lines, records, write_sweep


def test_a_sweep_makes_skips_and_shows(gcdbench, tmp_path):
    path = write_sweep(tmp_path)
    answer = gcdbench("sweep", path, "--json", "--seed", "0")
    assert answer.code == 0, answer.stderr
    assert "3 runs (3 new); 3 to make in 1 jobs" in answer.stderr
    assert re.search("001-digits-digits-vit-seed0-......: done", answer.stderr)
    found = records(tmp_path / "runs")
    assert len(found) == 3
    assert {record["lanes"] for record in found.values()} == {3}
    table = gcdbench("table", path, "--json", "--seed", "0")
    assert lines(table) == lines(answer)
    again = gcdbench("sweep", path, "--seed", "0")
    assert again.code == 0
    assert "3 runs (3 finished); nothing to make" in again.stderr
    assert "A sweep" in again.stdout


FRAGILE = """
import os
from pathlib import Path
from gcdbench_simgcd import SimGCD

class Fragile(SimGCD):
    def forward(self, batch, t):
        if Path("broken").exists():
            raise ValueError("a cable is loose")
        return super().forward(batch, t)
"""


@pytest.mark.clusters
def test_failed_runs_are_listed_and_tried_again_on_request(gcdbench, tmp_path):
    (tmp_path / "fragile.py").write_text(FRAGILE)
    meta = tmp_path / "fragile-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: fragile\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[gcdbench.methods]\nfragile = fragile:Fragile\n")
    path = write_sweep(tmp_path, more='[[row]]\nkey = "f"\nlabel = "Fragile"\nmethod = "fragile"\n')
    here = {"PYTHONPATH": str(tmp_path)}
    (tmp_path / "broken").touch()
    answer = gcdbench("sweep", path, "--seed", "0", env=here)
    assert answer.code == 1
    assert "1 of 4 rows or runs are not finished. Failed runs are tried again with --retry-failed." in answer.stderr
    assert "Fragile on digits, digits-vit, seed 0: The method 'fragile' failed" in answer.stderr
    assert "a cable is loose" in answer.stderr
    assert len(records(tmp_path / "runs")) == 3  # its lanes have gone on
    (failed,) = (tmp_path / "runs").glob("fragile/digits/*/failed.json")
    assert "a cable is loose" in json.loads(failed.read_text())["reason"]
    (tmp_path / "broken").unlink()
    skipped = gcdbench("sweep", path, "--seed", "0", env=here)
    assert skipped.code == 1
    assert "Failed before: Fragile on digits, digits-vit, seed 0" in skipped.stderr
    assert "nothing to make" in skipped.stderr
    retried = gcdbench("sweep", path, "--seed", "0", "--retry-failed", env=here)
    assert retried.code == 0, retried.stderr
    assert not failed.exists()


@pytest.mark.clusters
def test_an_interrupted_sweep_saves_its_runs_and_would_go_on(gcdbench, tmp_path):
    path = write_sweep(tmp_path, epochs=300)
    command = [sys.executable, "-m", "gcdbench", "sweep", str(path), "--seed", "0"]
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    process = subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=both, text=True, preexec_fn=usual_signals)
    try:
        ends = time.monotonic() + 60
        while time.monotonic() < ends and not list(tmp_path.glob("runs/*/digits/*/checkpoint/last.pt")):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    (log,) = (tmp_path / "runs" / ".sweeps" / "little" / "logs").iterdir()
    assert "Ended by a signal" in log.read_text()
    assert len(list(tmp_path.glob("runs/*/digits/*/checkpoint/last.pt"))) == 3
    assert not list(tmp_path.glob("runs/*/digits/*/failed.json"))
    again = gcdbench("sweep", path, "--seed", "0", "--dry-run")
    assert "3 runs (3 unfinished); 3 to make in 1 jobs" in again.stderr


def test_the_cost_is_printed_without_running_anything(cli, tmp_path):
    path = write_sweep(tmp_path)
    answer = cli("sweep", path, "--dry-run", "--json", "--tflops", "1")
    assert answer.code == 0, answer.stderr
    found = answer.json()
    assert found["total"]["runs"] == 6
    assert found["assumed"]["tflops"] == 1
    assert not (tmp_path / "runs").exists()
    assert "| digits | digits-vit | 1,797 | 6 |" in cli("sweep", path, "--dry-run", "--markdown").stdout
    shown = cli("sweep", path, "--dry-run").stdout
    assert "GPU hours at 60 TFLOP/s sustained" in shown
    assert cli("sweep", path, "--dry-run", "--latex").code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--launcher", "locale"), "Did you mean 'local'"),
        (("--launcher-set", "paralel=2"), "Did you mean 'parallel'"),
        (("--launcher-set", "parallel"), "takes key=value"),
        (("--launcher-set", "parallel=x"), "parallel"),
        (("--launcher-set", "parallel=0"), "at least 1"),
        (("--device", "cpu", "--gpus-per-job", "1"), "on the CPU"),
        (("--minutes", "5"), "leave out --minutes"),
        (("--gpus-per-job", "inf"), "no finite number"),
        (("--dry-run", "--launcher", "nosuch"), "no launcher 'nosuch'"),
        (("--dry-run", "--tflops", "nan"), "nan"),
        (("--cpus-per-job", "4096"), "4096 cores, but this machine has"),
        (("--set", "train.epochs=3"), "prescribes"),
    ],
)
def test_mistakes_are_sentences(cli, tmp_path, arguments, words):
    answer = cli("sweep", write_sweep(tmp_path), *arguments)
    assert answer.code == 2
    assert words in answer.stderr


def test_experiments_that_train_nothing_and_files_that_are_none(cli, tmp_path):
    assert "trains nothing" in cli("sweep", "parameters").stderr
    assert "no experiment file" in cli("sweep", "none.toml").stderr
    (tmp_path / "job.json").write_text("{")
    answer = cli("job", "job.json")
    assert answer.code == 2
    assert "cannot be read as a job" in answer.stderr
