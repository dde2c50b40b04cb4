"""A shortened form of `make fuzz`, and that the guard and the driver notice what they should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS


def run(*arguments, code=None):
    start = ["-m", "tests.fuzz"] if code is None else ["-c", code]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *start, *arguments], capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_damaged_files_of_every_format():
    done = run("--cases", "12000", "--jobs", "1", "--json", "--seed", "11")
    found = json.loads(done.stdout)
    assert found["findings"] == []
    assert found["cases"].keys() == {target.name for target in TARGETS}
    assert done.returncode == 0


BROKEN = """
import os, time
from pathlib import Path
from tests.fuzz import own_targets, targets
from tests.fuzz.__main__ import main
import tests.fuzz.__main__ as driver
driver.HANG = 2

class Broken(own_targets.Epochs):
    name = "broken"
    def read(self):
        ACTION

targets.TARGETS = (Broken,)
main(["--cases", "3", "--jobs", "1", "--json"])
"""


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("raise KeyError('x')", "KeyError"),
        ("open('/etc/passwd')", "Escaped: open '/etc/passwd'"),
        ("os.listdir('/')", "Escaped: os.listdir"),
        ("os.system('true')", "Escaped: os.system"),
        ("import socket; socket.socket().connect(('127.0.0.1', 9))", "Escaped: socket"),
        ("Path(self.root / 'metrics.jsonl').unlink()", "Escaped: os.remove"),
        ("os.abort()", "ended with -6"),
        ("time.sleep(30)", "hung for 2 seconds"),
        ("self.n = getattr(self, 'n', 0) + 1; self.n > 3 and bytearray(8 << 30)", "MemoryError"),  # after the warm-up
    ],
)
def test_what_a_parser_must_not_do_is_noticed(action, words):
    done = run(code=BROKEN.replace("ACTION", action))
    found = json.loads(done.stdout)["findings"]
    assert found, done.stderr
    assert words in found[0][2]
    assert done.returncode == 1


def test_every_parser_has_a_target():
    """Modules of the core that read files someone else may have written."""
    words = ("tomllib.loads", "read_toml(", "Unpickler", "np.load(", "torch.load(", "load_file(", "Image.open(",
             "csv.DictReader", "tarfile.open", "read_json(", "parse_json(", "read_lines(", "decompressobj")  # fmt: skip
    root = Path(__file__).parents[2] / "gcdbench"
    found = {p.relative_to(root).as_posix() for p in root.rglob("*.py") if any(w in p.read_text() for w in words)}
    covered = {
        "config/coercion.py", "config/resolve.py", "config/presets.py", "analysis/experiment_file.py",
        "prepare/request.py", "data/formats/restricted_pickle.py", "data/formats/matfile.py", "data/fetch.py",
        "data/datasets/files.py", "data/datasets/folder.py", "data/datasets/cub.py", "data/datasets/aircraft.py",
        "data/datasets/cifar.py", "records/record.py", "records/run_directory.py", "system/files.py",
        "system/locks.py", "evaluation/score.py", "training/checkpoint.py", "backbone/weights.py",
        "data/store/store_folder.py", "data/store/unreadable_scan.py", "cli/commands/results.py",
        "cli/commands/show.py", "experiments/job_file.py",
    }  # fmt: skip
    # Read only what gcdbench or an installed plugin has written; damage to it is tested where they are.
    own = {
        "testing/recording.py", "runs/verify.py", "report/outcome.py", "analysis/published.py", "cli/run_output.py",
        "benchmarks/scene.py", "benchmarks/stores.py", "benchmarks/growth.py", "system/parallel/communicator.py",
        "report/thumbnails.py", "data/store/resumable_writer.py", "records/jsonl_tracker.py",
        "prepare/estimate_k.py",
    }  # fmt: skip
    assert found - own <= covered
