"""How far it is from the command to a method's forward."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FRAMES, HOPS = 12, 8
SPY = """
import json, sys, traceback
from pathlib import Path
import gcdbench
from gcdbench_simgcd.method import SimGCD
from gcdbench.training.lane import Lane
from gcdbench.__main__ import start

ours, forward, found = str(Path(gcdbench.__file__).parent), SimGCD.forward, []

def spy(self, batch, t):
    stack = [frame for frame in traceback.extract_stack()[:-1] if frame.filename.startswith(ours)]
    if any(frame.filename.endswith("training/loop.py") for frame in stack):
        found.append([[Path(f.filename).relative_to(ours).as_posix(), f.name] for f in stack])
    return forward(self, batch, t)

SimGCD.forward = spy
try:
    start()
finally:
    Path("stack.json").write_text(json.dumps(found[0]))
"""


def test_from_the_command_to_forward(tmp_path):
    (tmp_path / "spy.py").write_text(SPY)
    command = "run --method simgcd --dataset digits --epochs 1 --set data.images=300 --runs runs --cache cache"
    subprocess.run([sys.executable, "spy.py", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    stack = [(file, name) for file, name in json.loads((tmp_path / "stack.json").read_text())]
    assert stack[0] == ("__main__.py", "start")
    assert stack[-1] == ("training/method_trainer.py", "step")
    # The method's own forward is the last frame.
    assert len(stack) + 1 <= FRAMES, stack
    entered = [file for number, (file, _) in enumerate(stack) if not number or stack[number - 1][0] != file]
    assert len(entered) <= HOPS, entered  # from file to file, the last hop into the method's
    assert len(set(entered)) == len(entered), f"back to a file that was left: {entered}"


def test_the_loop_is_read_on_one_screen():
    text = (Path(__file__).parents[2] / "gcdbench" / "training" / "loop.py").read_text()
    loop = text[text.index("def train(") : text.index("def finish_trained(")]
    assert len(loop.splitlines()) <= 60
    assert "lambda:" not in text
