"""Jobs on this machine, as many at a time as its GPUs or cores can take."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gcdbench.contracts import JobState, Launcher, LaunchJob, Resources
from gcdbench.errors import UsageError
from gcdbench.experiments.launchers.command import Command, was_taken_away


@dataclass(frozen=True)
class LocalConfig:
    """Settings of the launcher."""

    parallel: int | None = None
    """Jobs at a time; None as many as GPUs and cores allow."""

    def __post_init__(self) -> None:
        if self.parallel is not None and self.parallel < 1:
            raise UsageError(f"The launcher's setting parallel is {self.parallel}; it must be at least 1.")


@dataclass
class Slot:
    """Room for one job."""

    gpus: tuple[int, ...]
    """Numbers of the GPUs its job sees."""
    running: tuple[str, Command] | None = field(default=None)


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> int:
    """GPUs that torch finds."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def visible(number: int) -> str:
    """How the GPU that torch counts so is named in CUDA_VISIBLE_DEVICES, which may be set for this process already."""
    given = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return given[number] if number < len(given) else str(number)


def slots(resources: Resources, gpus: int, cores: int, parallel: int | None) -> list[Slot]:
    """How jobs are packed: each GPU is whole, or shared by as many jobs as fit; cores limit the number as well."""
    wanted, each_cpus = resources.gpus or 0, resources.cpus or 1
    if each_cpus > cores:
        raise UsageError(f"A job is to have {each_cpus} cores, but this machine has {cores}.")
    most = cores // each_cpus
    if not wanted:
        found = [Slot(())] * most
    elif wanted < 1:
        each = int(1 / wanted + 1e-9)
        found = [Slot((number,)) for _ in range(each) for number in range(gpus)]
    else:
        width = int(wanted)
        if width != wanted:
            raise UsageError(f"A job is to have {wanted:g} GPUs; more than one must be a whole number.")
        found = [Slot(tuple(range(first, first + width))) for first in range(0, gpus - width + 1, width)]
    if not found:
        raise UsageError(f"A job is to have {wanted:g} GPUs, but torch finds {gpus} here.")
    return [Slot(slot.gpus) for slot in found[: min(most, parallel or most)]]


class LocalLauncher(Launcher):
    """Starts a process per job and gives it its GPUs and threads."""

    name = "local"
    Config = LocalConfig

    def __init__(self, config: LocalConfig, resources: Resources, device: str, folder: Path) -> None:
        super().__init__(config, resources, device, folder)
        if resources.minutes is not None or resources.memory_gb is not None:
            raise UsageError(
                "Jobs on this machine have no limits of time and memory: leave out --minutes and the like."
            )
        found = 0 if device == "cpu" else gpus()
        # A GPU per job where there are some, and its share of the cores; else a core per job.
        self.resources = resources.filled(1, max(1, cores() // found)) if found else resources.filled(0, 1)
        self.slots = slots(self.resources, found, cores(), config.parallel)
        self.waiting: list[LaunchJob] = []
        self.states: dict[str, JobState] = {}

    def submit(self, jobs: Sequence[LaunchJob]) -> None:
        """Queue them."""
        self.waiting += jobs
        self.states |= {job.name: JobState("waiting") for job in jobs}

    def poll(self) -> Mapping[str, JobState]:
        """See who has ended, and start the next ones."""
        for slot in self.slots:
            if slot.running is not None:
                name, command = slot.running
                code = command.poll()
                if code is not None:
                    phase = "lost" if was_taken_away(code) else "ended"
                    self.states[name] = JobState(phase, code, self.states[name].where)  # type: ignore[arg-type]
                    slot.running = None
            if slot.running is None and self.waiting:
                self._start(slot, self.waiting.pop(0))
        return dict(self.states)

    def _start(self, slot: Slot, job: LaunchJob) -> None:
        # A job without GPUs must not see any, or all of them would take the first.
        seen = ",".join(map(visible, slot.gpus))
        environment = {"OMP_NUM_THREADS": str(self.resources.cpus), "CUDA_VISIBLE_DEVICES": seen, **job.environment}
        command = Command(job.command, environment, str(job.log))
        command.start()
        slot.running = (job.name, command)
        where = socket.gethostname() + (f", GPU {seen}" if seen else "")
        self.states[job.name] = JobState("running", where=where)

    def stop(self) -> None:
        """All of them at once, then wait."""
        self.waiting.clear()
        running = [slot.running[1] for slot in self.slots if slot.running is not None]
        for command in running:
            command.ask_to_end()
        for command in running:
            command.end()
