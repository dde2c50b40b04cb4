"""SIGKILL twenty times, ten of them while a file is being written. Every other fault: `make torture-quick`, in CI."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

CLEAN = {key: value for key, value in os.environ.items() if key != "GCDBENCH_DATA"}


def torture(*arguments):
    command = [sys.executable, "-m", "tests.torture", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**CLEAN, "OMP_NUM_THREADS": "1"})
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def assert_nothing_lost(tallies, injected):
    for tally in tallies:
        assert tally["injected"] == injected
        assert tally["lost"] == 0, tally
        assert tally["changed"] == 0, tally
        assert tally["complaints"] == [], tally


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.parametrize("fault", ["SIGKILL at a random moment", "SIGKILL while a file is being written"])
def test_sigkill_at_ten_moments(fault):
    (tally,) = (t for t in torture("--rounds", "10", "--only", fault, "--seed", "7") if t["fault"] == fault)
    assert_nothing_lost([tally], 10)


@pytest.mark.torture
def test_the_suite_notices_a_result_that_changes(tmp_path):
    """A suite that cannot fail proves nothing."""
    code = """
import json
from gcdbench.records.record import hashes_of
from tests.torture import faults
@faults.fault("exchange")
def exchange(stage):
    stage.load.start(stage.runs).wait()
    for path in stage.runs.glob("*/*/*/record.json"):
        data = json.loads(path.read_text())
        data["metrics"]["all"] += 1.0
        data["hashes"] = hashes_of(path.parent, data["metrics"])  # else it would not even be read
        path.write_text(json.dumps(data))
@faults.fault("lose")
def lose(stage):
    stage.load.start(stage.runs).wait()
    for path in stage.runs.glob("*/*/*/"):
        (path / "record.json").write_text("{}")
from tests.torture.__main__ import main
main(["--json", "--only", "exchange", "--only", "lose"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=CLEAN)
    assert done.returncode == 1
    one, two = json.loads(done.stdout)
    assert one["changed"] == 1
    assert two["lost"] == 1
