"""Jobs on a Slurm cluster through submitit: an array of commands, queued again from their checkpoints."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gcdbench.contracts import JobState, Launcher, LaunchJob, Resources
from gcdbench.errors import GcdbenchError, UsageError
from gcdbench.experiments.launchers.command import SAVING, Command, was_taken_away

WEEK = 7 * 24 * 60
"""Minutes that a job may take where the user sets no limit."""


@dataclass(frozen=True)
class SlurmConfig:
    """Settings of the launcher."""

    cluster: Literal["slurm", "local"] = "slurm"
    """`slurm`, or submitit's own processes on this machine (to try things out)."""
    partition: str | None = None
    """Partition to submit to."""
    account: str | None = None
    """Account that is charged."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Features that a node must have."""
    parallel: int = 64
    """Jobs of the array that run at the same time."""
    requeues: int = 100
    """How often a job may reach its time limit and be queued again."""
    warning: int = 120
    """Seconds before the time limit at which a job is asked to save its runs."""
    setup: tuple[str, ...] = ()
    """Shell lines before each job, such as `module load cuda`."""

    def __post_init__(self) -> None:
        for name in ("parallel", "requeues", "warning"):
            if getattr(self, name) < 1:
                raise UsageError(f"The launcher's setting {name} is {getattr(self, name)}; it must be at least 1.")


class Task(Command):
    """A command as submitit calls it. What is submitted holds the command's words and nothing else."""

    def __call__(self) -> int:
        """Run it; the exit code. Slurm signals this process alone when the job is cancelled: it passes that on."""
        signal.signal(signal.SIGTERM, lambda *_: self.ask_to_end())
        self.start()
        return self.wait()

    def checkpoint(self) -> Any:
        """The time limit is near: let it save its runs, and queue the same command again."""
        from submitit.helpers import DelayedSubmission

        self.end()
        return DelayedSubmission(Task(self.command, self.environment, self.log))


class SlurmLauncher(Launcher):
    """A job array; time limits are survived, and commands are submitted, not state."""

    name = "slurm"
    Config = SlurmConfig

    def __init__(self, config: SlurmConfig, resources: Resources, device: str, folder: Path) -> None:
        super().__init__(config, resources, device, folder)
        if config.cluster == "local":  # which has no say over GPUs
            self.resources = resources.filled(0, 1)
        try:
            import submitit
        except ImportError as fault:
            raise UsageError("--launcher slurm needs the package: pip install 'gcdbench[slurm]'.") from fault
        missing = [name for name in ("sbatch", "srun") if shutil.which(name) is None]
        if config.cluster == "slurm" and missing:
            raise UsageError(f"There is no Slurm here (no {missing[0]} on the path): submit from one of its nodes.")
        self._error: type[Exception] = submitit.core.utils.FailedJobError
        self.executor = submitit.AutoExecutor(
            folder=folder / "submitit", cluster=config.cluster, slurm_max_num_timeout=config.requeues
        )
        self.executor.update_parameters(**self._parameters())
        self.jobs: dict[str, Any] = {}
        self.ended: dict[str, JobState] = {}

    def _parameters(self) -> dict[str, Any]:
        config, resources = self.config, self.resources
        least = config.warning + SAVING
        if resources.minutes is not None and config.cluster == "slurm" and 60 * resources.minutes <= least:
            raise UsageError(
                f"--minutes is {resources.minutes}, but a job is asked to save {config.warning} seconds before its end "
                f"and may take {SAVING:.0f} seconds to save: give it more, or lower the launcher's setting warning."
            )
        gpus = int(resources.gpus or 0)
        if gpus != (resources.gpus or 0):
            raise UsageError(f"A job is to have {resources.gpus:g} GPUs; Slurm gives whole ones.")
        found: dict[str, Any] = {
            "name": "gcdbench",
            "timeout_min": resources.minutes or WEEK,
            "nodes": 1,
            "tasks_per_node": 1,
            "cpus_per_task": resources.cpus,
            "gpus_per_node": gpus or None,
            "mem_gb": resources.memory_gb,
        }
        if config.cluster == "slurm":
            found |= {
                "slurm_array_parallelism": config.parallel,
                "slurm_signal_delay_s": config.warning,
                "slurm_setup": list(config.setup) or None,
                "slurm_partition": config.partition,
                "slurm_account": config.account,
                "slurm_qos": config.qos,
                "slurm_constraint": config.constraint,
                "slurm_additional_parameters": {"requeue": True},
            }
        return {key: value for key, value in found.items() if value is not None}

    def submit(self, jobs: Sequence[LaunchJob]) -> None:
        """One array."""
        threads = {"OMP_NUM_THREADS": str(self.resources.cpus)}
        for job in jobs:  # one that was lost may have been queued again by Slurm as well
            self._cancel(job.name)
            self.ended.pop(job.name, None)
        try:
            with self.executor.batch():
                found = [
                    self.executor.submit(Task(job.command, {**threads, **job.environment}, str(job.log)))
                    for job in jobs
                ]
        except self._error as fault:
            raise GcdbenchError(f"Slurm does not take the jobs: {fault}") from fault
        self.jobs |= {job.name: one for job, one in zip(jobs, found, strict=True)}

    def poll(self) -> Mapping[str, JobState]:
        """What the queue says."""
        for name, job in self.jobs.items():
            if name not in self.ended and job.done():
                self.ended[name] = self._result(job)
        return {name: self.ended.get(name) or _open(job) for name, job in self.jobs.items()}

    def _result(self, job: Any) -> JobState:
        where = f"job {job.job_id}"
        if not job.paths.result_pickle.exists():  # submitit would wait for it
            return JobState("lost", where=where, reason=f"Slurm says {job.state}")
        try:
            code = int(job.result())
        except Exception as fault:  # what went wrong before the command could begin, or submitit's own
            first = (str(fault).strip().splitlines() or [""])[-1]
            return JobState("lost", where=where, reason=f"{type(fault).__name__}: {first}")
        return JobState("lost" if was_taken_away(code) else "ended", code, where)

    def _cancel(self, name: str) -> None:
        job = self.jobs.get(name)
        if job is not None and not job.done():
            job.cancel(check=False)

    def stop(self) -> None:
        """Cancel what has not ended; each is asked to end first, and saves its runs."""
        for name in self.jobs:
            if name not in self.ended:
                self._cancel(name)


def _open(job: Any) -> JobState:
    return JobState("running" if job.state.upper() == "RUNNING" else "waiting", where=f"job {job.job_id}")
