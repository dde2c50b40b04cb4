"""Jobs on a Ray cluster: an existing one by its address, or one that is started here."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcdbench.contracts import JobState, Launcher, LaunchJob, Resources
from gcdbench.errors import GcdbenchError, UsageError
from gcdbench.experiments.launchers.command import Command, was_taken_away


@dataclass(frozen=True)
class RayConfig:
    """Settings of the launcher."""

    address: str | None = None
    """Address of a cluster, or `auto` for one that runs on this machine; None takes $RAY_ADDRESS or starts one here."""
    cpus: int | None = None
    """Cores of a cluster that is started here; None for all of this machine."""
    namespace: str = "gcdbench"
    """Ray namespace of the jobs."""


def run_command(command: list[str], environment: dict[str, str], log: str) -> tuple[int, str]:
    """What a Ray worker does: the command, until it ends or the task is cancelled. Exit code and machine."""
    job = Command(command, environment, log)
    job.start()
    try:
        return job.wait(), socket.gethostname()
    except BaseException:  # cancelled
        job.end()
        raise


class RayLauncher(Launcher):
    """One Ray task per job; GPUs are assigned by Ray."""

    name = "ray"
    Config = RayConfig

    def __init__(self, config: RayConfig, resources: Resources, device: str, folder: Path) -> None:
        super().__init__(config, resources, device, folder)
        try:
            import ray
        except ImportError as fault:
            raise UsageError("--launcher ray needs the package: pip install 'gcdbench[ray]'.") from fault
        if resources.minutes is not None:
            raise UsageError("Ray has no time limits: leave out --minutes.")
        self.ray: Any = ray
        self.tasks: dict[str, Any] = {}
        self.states: dict[str, JobState] = {}
        self.logs: dict[str, tuple[Path, int]] = {}
        """Log of each job, and how long it was before."""
        self.started = not ray.is_initialized()
        if self.started:
            self._connect(config)
        with_gpus = device != "cpu" and self.ray.cluster_resources().get("GPU", 0) > 0
        self.resources = resources.filled(1 if with_gpus else 0, 1)
        self._require_room()

    def _connect(self, config: RayConfig) -> None:
        """Ray's own messages are not for whoever follows the sweep; each job has a log."""
        import logging

        address = config.address or os.environ.get("RAY_ADDRESS")
        if address:
            _require_listener(address)
        own = {} if address else {"num_cpus": config.cpus, "include_dashboard": False}
        try:
            self.ray.init(
                address=address or "local",  # not some other cluster that happens to run on this machine
                namespace=config.namespace,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=True,
                **own,
            )
        except Exception as fault:  # Ray raises many kinds
            first = (str(fault).strip().splitlines() or [type(fault).__name__])[0]
            where = f"The Ray cluster at {address} cannot be reached" if address else "Ray cannot be started here"
            raise GcdbenchError(f"{where}: {first}") from fault

    def _require_room(self) -> None:
        """A job that no machine can ever hold would wait without end."""
        wanted = {"GPU": float(self.resources.gpus or 0), "CPU": float(self.resources.cpus or 1)}
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(all(m.get(kind, 0) >= amount for kind, amount in wanted.items()) for m in machines):
            machine_list = "; ".join(f"{m.get('GPU', 0):g} GPUs, {m.get('CPU', 0):g} cores" for m in machines) or "none"
            self.stop()
            raise UsageError(
                f"No machine of the Ray cluster can hold a job with {wanted['GPU']:g} GPUs and {wanted['CPU']:g} "
                f"cores; there are: {machine_list}. See --gpus-per-job and --cpus-per-job."
            )

    def submit(self, jobs: Sequence[LaunchJob]) -> None:
        """One task each; a killed one is given again by whoever follows the sweep, so Ray does not."""
        memory = self.resources.memory_gb
        task = self.ray.remote(run_command)
        wanted = {
            "num_cpus": self.resources.cpus,
            "num_gpus": self.resources.gpus,
            "memory": None if memory is None else int(memory * 2**30),
            "max_retries": 0,
        }
        for job in jobs:
            environment = {"OMP_NUM_THREADS": str(self.resources.cpus), **job.environment}
            if not self.resources.gpus:
                environment["CUDA_VISIBLE_DEVICES"] = ""
            self.logs[job.name] = (job.log, _size(job.log))
            placed = task.options(name=job.name, **wanted)
            self.tasks[job.name] = placed.remote(list(job.command), environment, str(job.log))
            self.states[job.name] = JobState("waiting")

    def poll(self) -> Mapping[str, JobState]:
        """A task that has written to its log is running."""
        open_tasks = {self.tasks[name]: name for name, s in self.states.items() if s.phase in ("waiting", "running")}
        if open_tasks:
            done, others = self.ray.wait(list(open_tasks), num_returns=len(open_tasks), timeout=0)
            for reference in done:
                self.states[open_tasks[reference]] = self._result(reference)
            for reference in others:
                name = open_tasks[reference]
                log, before = self.logs[name]
                if _size(log) > before:
                    self.states[name] = JobState("running")
        return dict(self.states)

    def _result(self, reference: Any) -> JobState:
        try:
            code, where = self.ray.get(reference)
        except Exception as fault:  # a worker or machine that is gone, in Ray's many words
            first = (str(fault).strip().splitlines() or [""])[0]
            return JobState("lost", reason=f"{type(fault).__name__}: {first}")
        return JobState("lost" if was_taken_away(code) else "ended", code, where)

    def stop(self) -> None:
        """Cancel what runs, so that it saves, and leave the cluster."""
        for name, state in self.states.items():
            if state.phase in ("waiting", "running"):
                self.ray.cancel(self.tasks[name], force=False)
        waiting = [self.tasks[n] for n, s in self.states.items() if s.phase in ("waiting", "running")]
        if waiting:
            self.ray.wait(waiting, num_returns=len(waiting), timeout=60)
        if self.started:
            self.ray.shutdown()


def _require_listener(address: str) -> None:
    """Ray itself would try for many minutes to reach an address where no one listens."""
    host, sign, port = address.removeprefix("ray://").rpartition(":")
    if not sign or not port.isdigit():
        return  # `auto`, `local`: Ray's to understand
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
    except OSError as fault:
        raise GcdbenchError(f"The Ray cluster at {address} cannot be reached: {fault.strerror or fault}.") from fault


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0
