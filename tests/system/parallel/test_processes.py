"""Real processes that talk by gloo: started by --gpus and by torchrun, killed, interrupted and continued."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gcdbench import registry
from gcdbench.system.parallel.spawn import meeting_place, rank_environment
from tests.support.signals import usual_signals

pytestmark = pytest.mark.ranks

FIRST = ("kmeans", "gcd", "supref", "uno", "orca", "simgcd", "legogcd", "cms", "rlcd")
"""Trained and compared to the end; the others, in double precision, by their steps."""
METHODS = ",".join(FIRST)
OTHERS = sorted({p.name for p in registry.plugins("method")}.difference(FIRST))
LONG = ("run", "--method", "rlcd", "--dataset", "digits", "--epochs", "400", "--checkpoint-every", "1")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gcdbench", *map(str, arguments)]


def begin(folder: Path, *arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen:
    before = [sys.executable, "-m", *launcher, "-m", "gcdbench", *arguments] if launcher else command(*arguments)
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(before, cwd=folder, stdout=pipe, stderr=both, text=True, preexec_fn=usual_signals)


def rank_of(process: int) -> str | None:
    try:
        facts = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return next((fact[5:] for fact in facts if fact.startswith("RANK=")), None)


def ranks_below(parent: int) -> dict[str, int]:
    """Process numbers of the ranks that a launcher has started."""
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return {rank: int(child) for child in listed if (rank := rank_of(int(child))) is not None}


def wait_for_epochs(folder: Path, count: int) -> None:
    """Until a run in the folder has this many epochs behind it."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        found = list(folder.glob("runs/*/digits/*/metrics.jsonl"))
        if found and len(found[0].read_text().splitlines()) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("the run does not train")


def outcome(folder: Path) -> dict[str, dict]:
    """By method the record, the losses and the predictions."""
    found = {}
    for path in sorted(folder.glob("runs/*/digits/*/record.json")):
        record = json.loads(path.read_text())
        lines = path.parent / "metrics.jsonl"
        losses = [json.loads(x)["losses"] for x in lines.read_text().splitlines()] if lines.is_file() else []
        clusters = np.load(path.parent / "predictions.npz")["cluster"]
        found[record["method"]] = {"record": record, "losses": losses, "clusters": clusters}
    return found


RECORDER = """
import atexit, json, os, sys
from gcdbench.cli.main import main
from gcdbench.training.method_trainer import MethodTrainer
from gcdbench.training.lane import Lane

found, training = {}, []
step, accumulate = Lane.step, MethodTrainer._accumulate

def stepping(self, *arguments):
    training.append(self)  # what is rehearsed before is no step of the run
    step(self, *arguments)
    training.pop()

def accumulating(self, losses, total, number):
    if training:
        steps = found.setdefault(" ".join([self.name, training[-1].at.stage.name, *losses]), [])
        steps.append([total.item(), *(term.value.item() for term in losses.values())])
    accumulate(self, losses, total, number)

Lane.step, MethodTrainer._accumulate = stepping, accumulating
atexit.register(lambda: json.dump(found, open(f"steps-{os.environ.get('RANK', 0)}.json", "w")))
main(sys.argv[1:])
"""


def recorded(folder: Path, count: int, *arguments: str) -> list[dict[str, list[list[float]]]]:
    """Per rank the losses of every step, by method and stage, of a run on real processes."""
    folder.mkdir()
    (folder / "recorder.py").write_text(RECORDER)
    with meeting_place() as store:
        ranks = [
            subprocess.Popen(
                [sys.executable, "recorder.py", *arguments],
                cwd=folder,
                env=rank_environment(rank, count, store),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]
        said = [process.communicate(timeout=400)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * count, said
    return [json.loads((folder / f"steps-{rank}.json").read_text()) for rank in range(count)]


@pytest.mark.parametrize(("precision", "tolerance"), [("fp64", 1e-6), ("fp32", 1e-4)])
def test_every_method_in_lanes_on_one_two_and_three_ranks(precision, tolerance, tmp_path):
    """The losses of the first 20 steps of every stage on every rank, and all predictions."""
    short = ("run", "--method", METHODS, "--dataset", "digits", "--epochs", "2", "--precision", precision)
    (wanted,) = recorded(tmp_path / "1", 1, *short)
    trained = {name.split()[0] for name in wanted}
    assert set(METHODS.split(",")) - trained == {"kmeans"}
    assert all(len(steps) >= 20 for steps in wanted.values())
    one = outcome(tmp_path / "1")
    for count in (2, 3):
        for found in recorded(tmp_path / str(count), count, *short):
            assert found.keys() == wanted.keys()
            for name, steps in found.items():
                close = {"rtol": tolerance, "atol": tolerance * 1e-3, "err_msg": name}
                np.testing.assert_allclose(steps[:20], wanted[name][:20], **close)
        many = outcome(tmp_path / str(count))
        assert many.keys() == one.keys() == set(METHODS.split(","))
        for method, found in many.items():
            assert found["record"]["world_size"] == count
            assert found["record"]["run_id"] == one[method]["record"]["run_id"]
            assert np.array_equal(found["clusters"], one[method]["clusters"]), method


@pytest.mark.parametrize("methods", [OTHERS[::2], OTHERS[1::2]], ids=",".join)
def test_the_steps_of_further_methods_on_one_and_two_ranks(methods, tmp_path):
    """Losses of the first 20 steps of every stage, in double precision; few images, since first stages are long."""
    names, few = ",".join(methods), ("--set", "data.images=512", "--epochs", "3", "--precision", "fp64")
    command = ("run", "--method", names, "--dataset", "digits", *few)
    (wanted,) = recorded(tmp_path / "1", 1, *command)
    assert {name.split()[0] for name in wanted} == set(methods)
    # Stages with the same losses are told apart.
    assert "sptnet" not in methods or {"simgcd", "prompts"} <= {n.split()[1] for n in wanted if n.startswith("sptnet")}
    assert all(len(steps) >= 8 for steps in wanted.values())
    for found in recorded(tmp_path / "2", 2, *command):
        assert found.keys() == wanted.keys()
        for name, steps in found.items():
            np.testing.assert_allclose(steps[:20], wanted[name][:20], rtol=1e-6, atol=1e-9, err_msg=name)


def test_only_the_first_rank_prints(gcdbench, tmp_path):
    answer = gcdbench("run", "--method", "supref", "--dataset", "digits", "--epochs", 1, "--gpus", 2, "--json")
    assert answer.code == 0, answer.stderr
    assert len(answer.json()["runs"]) == 1  # one document
    assert outcome(tmp_path)["supref"]["record"]["world_size"] == 2


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_killed_rank_ends_the_run_and_the_same_command_goes_on(rank, tmp_path):
    process = begin(tmp_path, *LONG, "--gpus", "2")
    try:
        wait_for_epochs(tmp_path, 2)
        ranks = ranks_below(process.pid)
        os.kill(ranks[rank], signal.SIGKILL)
        started = time.monotonic()
        said, _ = process.communicate(timeout=60)
        assert time.monotonic() - started < 30
        assert process.returncode == 7, said
        assert f"Rank {rank} of 2" in said
        assert "resumes from it" in said
        assert "Traceback" not in said
        for other in ranks.values():
            with pytest.raises(ProcessLookupError):
                os.kill(other, 0)
    finally:
        process.kill()
    if rank == "0":
        return
    again = begin(tmp_path, *LONG, "--gpus", "2")
    try:
        wait_for_epochs(tmp_path, 4)
        again.send_signal(signal.SIGTERM)
        said, _ = again.communicate(timeout=60)
        assert again.returncode == 143, said
        assert "resuming after epoch" in said
    finally:
        again.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_run_on_all_ranks(number, tmp_path):
    process = begin(tmp_path, *LONG, "--gpus", "2")
    try:
        wait_for_epochs(tmp_path, 2)
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 128 + number, said
        assert "is saved" in said
        assert "Traceback" not in said
    finally:
        process.kill()


def test_another_number_of_ranks_goes_on_exactly(tmp_path, gcdbench):
    """In double precision: begun by three, continued by one, finished by two."""
    short = ("run", "--method", "supref", "--dataset", "digits", "--precision", "fp64", "--epochs", "5")
    for number, count in enumerate((3, 1), 1):
        process = begin(tmp_path, *short, "--gpus", str(count), "--checkpoint-every", "0")
        try:
            wait_for_epochs(tmp_path, number)
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=60)
            assert process.returncode == 143, said
        finally:
            process.kill()
    assert gcdbench(*short, "--gpus", 2).code == 0
    (tmp_path / "whole").mkdir()
    assert gcdbench(*short, cwd=tmp_path / "whole").code == 0
    one, two = outcome(tmp_path / "whole")["supref"], outcome(tmp_path)["supref"]
    assert np.array_equal(one["clusters"], two["clusters"])
    for left, right in zip(one["losses"], two["losses"], strict=True):
        assert left == pytest.approx(right, rel=1e-6)
    notes = " ".join(two["record"]["warnings"])
    assert "processes 3 before, 1 now" in notes
    assert "processes 1 before, 2 now" in notes


def test_torchrun_owns_the_ranks_and_its_restart_resumes(tmp_path):
    elastic = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    short = ("run", "--method", "simgcd", "--dataset", "digits", "--epochs", "12")
    process = begin(tmp_path, *short, launcher=elastic)
    try:
        wait_for_epochs(tmp_path, 3)
        os.kill(ranks_below(process.pid)["1"], signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert "Rank 1 of 2" in said
    assert "resuming after epoch" in said
    assert outcome(tmp_path)["simgcd"]["record"]["world_size"] == 2


FAULTY = """
import os
import sys
import time
from gcdbench_simgcd import SimGCD

class Faulty(SimGCD):
    def forward(self, batch, t):
        if os.environ.get("RANK") == "1" and t.epoch == 2:
            {step}
        return super().forward(batch, t)

    def predict(self, pool):
        if os.environ.get("RANK") == "{rank}" and self.task.steps_per_epoch > 2:
            {predict}
        return super().predict(pool)
"""


def with_faulty(tmp_path: Path, step: str = "pass", predict: str = "pass", rank: int = 1) -> dict[str, str]:
    """A plugin that fails on one rank alone, and the environment in which it is installed."""
    (tmp_path / "faulty.py").write_text(FAULTY.format(step=step, predict=predict, rank=rank))
    meta = tmp_path / "faulty-1.0.dist-info"
    meta.mkdir(exist_ok=True)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[gcdbench.methods]\nfaulty = faulty:Faulty\n")
    return {"PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("raise ValueError('odd')", "Rank 1 of 2 has stopped: The method 'faulty' failed in forward: ValueError: odd"),
        ("os._exit(3)", "Rank 1 of 2 ended without an error message"),
    ],
)
def test_a_fault_of_one_rank_alone_ends_all_within_a_minute(action, said, gcdbench, tmp_path):
    here = with_faulty(tmp_path, step=action)
    started = time.monotonic()
    answer = gcdbench("run", "--method", "faulty", "--dataset", "digits", "--epochs", 50, "--gpus", 2, env=here)
    assert time.monotonic() - started < 60
    assert answer.code == 7, answer.stderr
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr
    assert list(tmp_path.glob("runs/faulty/digits/*/checkpoint/last.pt"))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_fault_of_one_rank_in_predict_is_the_fault_of_the_run(rank, gcdbench, tmp_path):
    """The other rank waits for features meanwhile; it hears why, and the lane beside it is finished."""
    once = "if not hasattr(sys, 'rehearsed'): sys.rehearsed = 1"  # the first rank rehearses
    action = "raise ValueError('strange')"
    text = f"{once}\n            else: {action}" if rank == 0 else action
    here = with_faulty(tmp_path, predict=text, rank=rank)
    answer = gcdbench("run", "--method", "faulty,supref", "--dataset", "digits", "--epochs", 1, "--gpus", 2, env=here)
    assert answer.code == 5, answer.stderr
    assert "failed in predict: ValueError: strange" in answer.stderr
    assert list(outcome(tmp_path)) == ["supref"]


def test_a_rank_that_cannot_even_begin_is_told(gcdbench, tmp_path):
    """Its plugin is missing, say, on its machine; the others would wait for it for ever."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif os.environ.get('RANK') == '1':\n    sys.exit('This machine has no torch.')\n"
    )
    answer = gcdbench(
        *("run", "--method", "rlcd", "--dataset", "digits", "--gpus", 2), env={"PYTHONPATH": str(tmp_path)}
    )
    assert answer.code in (1, 7)
    assert "Rank 1 of 2" in answer.stderr
    assert "no torch" in answer.stderr


TWICE = """
import gcdbench
for seed in range(4):
    (record,) = gcdbench.run("kmeans", "digits", seeds=seed, device="cpu")
    assert record.world_size == 2
print("all", record.run_id)
"""


def test_a_script_may_make_several_runs_under_torchrun(tmp_path):
    (tmp_path / "twice.py").write_text(TWICE)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "twice.py"]
    done = subprocess.run(launcher, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all ") == 2
    assert len(list(tmp_path.glob("runs/kmeans/digits/*/record.json"))) == 4


MISSING = """
import os, sys
root = {good!r} if os.environ["RANK"] == "0" else {bad!r}
more = ["--method", "kmeans", "--dataset", "folder", "--backbone", "digits-vit", "--data-root", root]
if sys.argv[1] == "command":
    from gcdbench.cli.main import main
    main(["run", *more])
else:
    import gcdbench
    try:
        gcdbench.run("kmeans", "folder", backbone="digits-vit", data_root=root)
    except gcdbench.errors.DataError as fault:
        print(fault, file=sys.stderr)
        sys.exit(fault.exit_code)
"""


@pytest.mark.parametrize("how", ["command", "python"])
def test_data_that_one_rank_lacks_is_told_by_the_first_and_ends_all_with_its_code(how, tmp_path):
    """By TCP as torchrun does it: threads of the groups must not outlive the interpreter and abort the process."""
    for name in "abcd":
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(6):
            pixels = np.random.default_rng(number).integers(255, size=(16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    (tmp_path / "missing.py").write_text(MISSING.format(good=str(tmp_path / "images"), bad=str(tmp_path / "nowhere")))
    for _ in range(3):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        ranks = []
        for rank in range(2):
            numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
            here = {**os.environ, "MASTER_ADDR": "127.0.0.1", **{k: str(v) for k, v in numbers.items()}}
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "missing.py", how],
                    cwd=tmp_path,
                    env={**here, "OMP_NUM_THREADS": "1"},
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        said = [process.communicate(timeout=60)[1] for process in ranks]
        assert [process.returncode for process in ranks] == [4, 4], said
        assert f"{tmp_path / 'nowhere'} does not exist" in said[0]
        assert "(Rank 1 of 2.)" in said[0]
        assert "terminate called" not in "".join(said)


SLOW = """
import os, time
from gcdbench.training import checkpoint
original = checkpoint.save
def slow(folder, state):
    if state["within"] is not None:
        time.sleep(17)
    original(folder, state)
checkpoint.save = slow
from gcdbench_simgcd import SimGCD as Faulty
"""


def test_a_slow_save_after_a_signal_is_waited_for(tmp_path):
    """Longer than a lost rank would be waited for: the others have nothing to save and must not be missed."""
    here = with_faulty(tmp_path)
    (tmp_path / "faulty.py").write_text(SLOW)
    arguments = ("run", "--method", "faulty", "--dataset", "digits", "--epochs", "400", "--gpus", "2")
    process = subprocess.Popen(
        command(*arguments),
        cwd=tmp_path,
        env={**os.environ, **here},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=usual_signals,
    )
    try:
        wait_for_epochs(tmp_path, 1)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 143, said
    assert "Rank" not in said
    (log,) = tmp_path.glob("runs/faulty/digits/*/log.txt")
    assert "saved after epoch" in log.read_text()


def test_more_processes_than_rows_and_other_mistakes_are_sentences(gcdbench):
    small = ("run", "--method", "rlcd", "--dataset", "digits", "--set", "train.batch_size=2")
    answer = gcdbench(*small, "--gpus", 3)
    assert answer.code == 2
    assert "too small for 3 processes" in answer.stderr
    assert answer.stderr.count("Error:") == 1
    answer = gcdbench("run", "--method", "rlcdd", "--dataset", "digits", "--gpus", 2)
    assert answer.code == 2
    assert answer.stderr.count("Did you mean 'rlcd'") == 1
    world = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    answer = gcdbench("run", "--method", "rlcd", "--dataset", "digits", "--gpus", 3, env=world)
    assert answer.code == 2
    assert "a launcher has started 2 processes" in answer.stderr


def test_the_plan_under_torchrun_is_printed_once(tmp_path):
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "gcdbench",
    ]
    dry = ("run", "--method", "supref", "--dataset", "digits", "--dry-run", "--json")
    done = subprocess.run([*launcher, *dry], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["plan"]) == 1


def test_stores_are_made_once_and_an_estimate_is_that_of_the_first_rank(gcdbench, tmp_path):
    how = ("--store-tokens", "fp32", "--train-views", "2", "--cache", tmp_path / "cache", "--epochs", "1")
    answer = gcdbench("run", "--method", "simgcd", "--dataset", "digits", "--k", "cms", *how, "--gpus", 2)
    assert answer.code == 0, answer.stderr
    assert answer.stderr.count("fp32 tokens of 1,797 images") == 1
    assert len(list((tmp_path / "cache" / "tokens").glob("[!.]*"))) == 2
    assert outcome(tmp_path)["simgcd"]["record"]["protocol"]["k"] == 7
