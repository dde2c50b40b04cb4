"""Real clusters on one machine: Ray with two raylets, submitit's own executor, and what is handed to Slurm."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gcdbench.contracts import LaunchJob, Resources
from gcdbench.errors import UsageError
from gcdbench.system.locks import locked
from tests.support.signals import usual_signals
from tests.support.sweeps import lines, records, write_sweep

pytestmark = pytest.mark.clusters

JOB = "gcdbench job"


def processes(words: str, below: Path) -> dict[int, int]:
    """Parents of the processes whose command has these words and names something below a folder."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if words in command and str(below) in command:
            found[int(entry.name)] = parent
    return found


def wait_for(condition, seconds=180.0):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("nothing happened")


def begin(folder: Path, *arguments) -> subprocess.Popen:
    command = [sys.executable, "-m", "gcdbench", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True, preexec_fn=usual_signals)


@pytest.fixture(scope="module")
def sequential(tmp_path_factory):
    """The table of the same six runs, made one after another in one process; once for all test processes."""
    folder = tmp_path_factory.getbasetemp().parent / "sequential"
    folder.mkdir(exist_ok=True)
    with locked(folder / "lock", lambda who: None):
        path = write_sweep(folder, epochs=6)
        command = [sys.executable, "-m", "gcdbench", "table", str(path), "--json", "--lanes", "1"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return lines(_Answer(done.stdout)), records(folder / "runs")


class _Answer:
    def __init__(self, stdout: str) -> None:
        self.stdout = stdout

    def json(self):
        import json

        return json.loads(self.stdout)


def assert_same_as(sequential, stdout: str, runs: Path) -> None:
    table, wanted = sequential
    assert lines(_Answer(stdout)) == table
    found = records(runs)
    assert found.keys() == wanted.keys()
    for run_id, record in found.items():
        assert record["metrics"] == wanted[run_id]["metrics"]


def test_ray_on_two_nodes_with_a_killed_worker(tmp_path, sequential):
    from ray.cluster_utils import Cluster

    path = write_sweep(tmp_path, epochs=6)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        how = ("--launcher", "ray", "--launcher-set", f"address={cluster.address}", "--lanes", 1, "--json")
        process = begin(tmp_path, "sweep", path, *how, "--checkpoint-every", "0.5")
        try:
            # In the middle of a run: its Ray worker is killed, not the command that it has started.
            wait_for(lambda: [p for p in tmp_path.glob("runs/*/digits/*/metrics.jsonl") if p.read_text()])
            worker = next(iter(wait_for(lambda: processes(JOB, tmp_path)).values()))
            os.kill(worker, signal.SIGKILL)
            out, said = process.communicate(timeout=200)
        finally:
            process.kill()
        assert process.returncode == 0, said
        assert "attempt 2" in said
        assert "running" in said
        logs = "".join(p.read_text() for p in (tmp_path / "runs/.sweeps/little/logs").iterdir())
        assert "resuming after epoch" in logs or "Ended by a signal" in logs
        assert_same_as(sequential, out, tmp_path / "runs")
    finally:
        cluster.shutdown()


def test_ray_starts_a_cluster_of_its_own_and_refuses_what_cannot_fit(gcdbench, tmp_path):
    path = write_sweep(tmp_path)
    short = ("sweep", path, "--launcher", "ray", "--seed", "0", "--launcher-set", "cpus=1")
    answer = gcdbench(*short, "--gpus-per-job", 4)
    assert answer.code == 2
    assert "No machine of the Ray cluster can hold a job with 4 GPUs" in answer.stderr
    answer = gcdbench(*short, "--json")
    assert answer.code == 0, answer.stderr
    assert len(records(tmp_path / "runs")) == 3
    answer = gcdbench("sweep", path, "--launcher", "ray", "--launcher-set", "address=127.0.0.1:1", "--seed", "1")
    assert answer.code == 1
    assert "cannot be reached" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_submitit_runs_the_same_sweep(gcdbench, tmp_path, sequential):
    path = write_sweep(tmp_path, epochs=6)
    how = ("--launcher", "slurm", "--launcher-set", "cluster=local", "--json")
    answer = gcdbench("sweep", path, *how)
    assert answer.code == 0, answer.stderr
    assert_same_as(sequential, answer.stdout, tmp_path / "runs")


def slurm_launcher(tmp_path, **config):
    from gcdbench.experiments.launchers.slurm import SlurmConfig, SlurmLauncher

    names = ("gpus", "cpus", "memory_gb", "minutes")
    resources = Resources(**{"minutes": 30, **{n: config.pop(n) for n in names if n in config}})
    return SlurmLauncher(SlurmConfig(**config), resources, "auto", tmp_path)


def test_a_job_near_its_time_limit_saves_and_is_queued_again(tmp_path):
    """As Slurm does it: a signal before the limit, and the same command once more."""
    from gcdbench.experiments.job_file import JobEnvironment
    from gcdbench.experiments.monitor import write_jobs
    from tests.experiments.test_sweep_plan import planned

    plan = planned(tmp_path, epochs=8)
    plan.jobs[0].runs[:] = plan.jobs[0].runs[:1]
    environment = JobEnvironment(str(tmp_path / "runs"), "data", str(tmp_path / "cache"), "cpu", checkpoint_every=0.0)
    (one,) = write_jobs(plan.jobs[:1], environment, tmp_path / "sweep")
    launcher = slurm_launcher(tmp_path / "sweep", cluster="local")
    launcher.submit([one.launch])
    wait_for(lambda: one.epochs()[0] >= 2)
    (task,) = wait_for(lambda: processes("submitit.core._submit", tmp_path))
    os.kill(task, signal.SIGUSR2)
    state = wait_for(lambda: (s := launcher.poll()[one.launch.name]).phase in ("ended", "lost") and s, seconds=120)
    assert (state.phase, state.code) == ("ended", 0)
    said = one.launch.log.read_text()
    assert said.count("started on") == 2
    assert "Ended by a signal" in said
    assert "resuming after epoch" in said
    assert one.job.finished == 1


SBATCH = """#!/bin/sh
cp "$1" {folder}/submitted.sh
echo "Submitted batch job 42"
"""


def test_the_script_that_slurm_is_given(tmp_path, monkeypatch):
    """An array of commands with time limit, warning, resources and permission to be queued again."""
    programs = tmp_path / "bin"
    programs.mkdir()
    silent = dict.fromkeys(("srun", "squeue", "sacct"), "#!/bin/sh\n")
    for name, text in {"sbatch": SBATCH.format(folder=tmp_path), **silent}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755 | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    launcher = slurm_launcher(
        tmp_path / "sweep", gpus=2, cpus=6, memory_gb=40.0, partition="fast", account="birds", parallel=5, warning=90,
        setup=("module load cuda",),
    )  # fmt: skip
    jobs = [
        LaunchJob(f"job-{n}", (sys.executable, "-m", "gcdbench", "job", f"{n}.json"), {"A": "b"}, tmp_path / f"{n}.log")
        for n in range(7)
    ]
    launcher.submit(jobs)
    script = (tmp_path / "submitted.sh").read_text()
    flags = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", script, re.M))
    assert flags["array"] == "0-6%5"
    assert flags["time"] == "30"
    assert flags["signal"] == "USR2@90"
    assert flags["gpus-per-node"] == "2"
    assert flags["cpus-per-task"] == "6"
    assert flags["mem"] == "40GB"
    assert (flags["partition"], flags["account"]) == ("fast", "birds")
    assert "requeue" in flags
    assert flags["nodes"] == flags["ntasks-per-node"] == "1"
    assert "module load cuda" in script
    assert [launcher.jobs[job.name].job_id for job in jobs] == [f"42_{n}" for n in range(7)]
    # What is handed over is the words of a command.
    task = launcher.jobs["job-3"].submission().function
    assert task.command == list(jobs[3].command)
    assert task.environment == {"OMP_NUM_THREADS": "6", "A": "b"}
    assert set(vars(task)) == {"command", "environment", "log", "_process"}


def test_a_lost_job_of_slurm_is_told_at_once_and_once(tmp_path, monkeypatch):
    """submitit itself would wait a quarter of a minute for the result of each, at every look."""
    test_the_script_that_slurm_is_given(tmp_path, monkeypatch)
    said = "#!/bin/sh\necho 'JobID|State'\nfor n in 0 1 2 3 4 5 6; do echo \"42_$n|FAILED\"; done\n"
    (tmp_path / "bin" / "sacct").write_text(said)
    launcher = slurm_launcher(tmp_path / "again")
    jobs = [LaunchJob(f"job-{n}", ("true",), {}, tmp_path / f"{n}.log") for n in range(7)]
    launcher.submit(jobs)
    started = time.monotonic()
    for _ in range(3):
        states = launcher.poll()
    assert time.monotonic() - started < 5
    assert {(s.phase, s.reason) for s in states.values()} == {("lost", "Slurm says FAILED")}


def test_impossible_limits_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: name)
    with pytest.raises(UsageError, match="--minutes is 2, but a job is asked to save 120 seconds before"):
        slurm_launcher(tmp_path, minutes=2)
    with pytest.raises(UsageError, match="parallel is 0"):
        slurm_launcher(tmp_path, parallel=0)


def test_without_slurm_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no sbatch on the path"):
        slurm_launcher(tmp_path)
    with pytest.raises(UsageError, match="Slurm gives whole ones"):
        slurm_launcher(tmp_path, cluster="local", gpus=0.5)
