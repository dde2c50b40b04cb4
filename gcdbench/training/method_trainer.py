"""A lane: one method instance with its optimisers, trained on batches that others prepare."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gcdbench.contracts import Batch, Losses, Method, Optim, Progress, Stage
from gcdbench.errors import GcdbenchError, PluginError, TrainingError
from gcdbench.system.device import Compute
from gcdbench.system.parallel.communicator import ALONE, Communicator
from gcdbench.system.parallel.gather import shared_batch
from gcdbench.system.plugin_call import memory_error, out_of_memory, plugin_call
from gcdbench.toolbox.losses import wide


class NotFinite(TrainingError):
    """A loss term or a weight was not a finite number."""

    def __init__(self, text: str, term: str = "", step: int = 0) -> None:
        super().__init__(text)
        self.term, self.step = term, step

    def with_evidence(self, where: str) -> NotFinite:
        """The same, saying where more is known."""
        fault = NotFinite(f"{self} {where}", self.term, self.step)
        fault.__cause__ = self
        return fault

    @classmethod
    def at(cls, method: str, term: str, step: int, kind: str = "loss term") -> NotFinite:
        """The error for a term or weight after a step, counted from 0."""
        text = (
            f"The {kind} '{term}' of '{method}' is not finite at step {step + 1} of the epoch. Lower train.lr, or use "
            "--precision fp32 or bf16."
        )
        return cls(text, term, step)


_UNFIT = (KeyError, TypeError, ValueError, RuntimeError)
"""What loading a state raises that belongs to something else."""


class Sums(NamedTuple):
    """Sums of a set of terms over the steps that had exactly these terms."""

    values: Tensor
    steps: int
    first_bad: Tensor
    """Step at which each term was first not finite, infinity if never."""


class MethodTrainer:
    """Steps a method and keeps the running means of its loss terms on the device."""

    def __init__(self, name: str, method: Method, compute: Compute, ranks: Communicator = ALONE) -> None:
        self.name = name
        self.method = method
        self.compute = compute
        self.ranks = ranks
        self.scaler = compute.scaler()
        self.optims: dict[str, Optim] = {}
        self.sums: dict[tuple[str, ...], Sums] = {}

    def start_stage(self, stage: Stage) -> None:
        """Ask the method for the stage's optimisers."""
        with plugin_call(self.name, "optimizers"):
            self.optims = self.method.optimizers(stage)
        trained = [p for optim in self.optims.values() for g in optim.optimizer.param_groups for p in g["params"]]
        if stage.epochs and not trained:
            raise PluginError(f"The method '{self.name}' has no optimiser for anything in its stage '{stage.name}'.")
        for optim in self.optims.values():
            for group in optim.optimizer.param_groups:
                group["initial_lr"] = group["lr"]

    def start_epoch(self, t: Progress) -> None:
        """Set learning rates and forget the last epoch's sums."""
        self._set_rates(self.optims.values(), t)
        self.sums = {}

    def _set_rates(self, optims: Iterable[Optim], t: Progress) -> None:
        for optim in optims:
            for group in optim.optimizer.param_groups:
                with plugin_call(self.name, "schedule"):
                    group["lr"] = optim.schedule(group["initial_lr"], t)

    def step(self, batch: Batch, t: Progress) -> None:
        """One optimiser step. Nothing in here waits for the device, save the overflow check of an unfused fp16 step."""
        with shared_batch(self.ranks, len(batch.target)):
            with plugin_call(self.name, "forward"):
                with self.compute.autocast():
                    losses = self.method(batch, t)
                if t.step == 0:
                    self._check(losses)
                total = losses.total()
            with plugin_call(self.name, "backward"):
                for optim in self.optims.values():
                    optim.optimizer.zero_grad(set_to_none=True)
                self.scaler.scale(total).backward()
            self._average()  # gradients of all ranks; nothing on one process
            stepping = [self.optims[name] for name in self.active(t)]
            self._set_rates((optim for optim in stepping if optim.per_step), t)
            for optim in stepping:
                with plugin_call(self.name, "optimizer.step"):
                    self.scaler.step(optim.optimizer)
            if stepping:  # without a step there is no overflow to judge the scale by
                self.scaler.update()
            self._accumulate(losses, total, t.step)  # sums stay on the device
            with plugin_call(self.name, "on_step_end"), torch.no_grad():
                self.method.on_step_end(batch, t)

    def active(self, t: Progress) -> tuple[str, ...]:
        """Names of the optimisers that step now."""
        with plugin_call(self.name, "active"):
            active = self.method.active(t)
            strange = [name for name in active or () if name not in self.optims]
        if strange:
            known = ", ".join(self.optims)
            raise PluginError(f"active of '{self.name}' names the optimiser '{strange[0]}'; there are {known}.")
        return tuple(name for name in self.optims if active is None or name in active)

    def _average(self) -> None:
        """The gradients of all ranks: each has its own rows' part of them, and all of what comes after the read-out."""
        if not self.ranks.alone:
            groups = (group for optim in self.optims.values() for group in optim.optimizer.param_groups)
            graded = {id(p): p.grad for group in groups for p in group["params"] if p.grad is not None}
            self.ranks.average(list(graded.values()))

    def _check(self, losses: Any) -> None:
        if not isinstance(losses, Losses) or not losses:
            raise PluginError(f"The method '{self.name}' must return at least one named loss from forward.")
        for name, term in losses.items():
            if term.value.ndim != 0:
                shape = tuple(term.value.shape)
                raise PluginError(f"The loss term '{name}' of '{self.name}' has shape {shape}; it must be one number.")

    def _accumulate(self, losses: Losses, total: Tensor, step: int) -> None:
        """Add the terms to the sums on the device, and note there at which step each first was not finite."""
        names = ("total", *losses)
        values = torch.stack([total.detach(), *(term.value.detach() for term in losses.values())])
        values = wide(values)
        never = torch.full_like(values, float("inf"))
        entry = self.sums.get(names) or Sums(torch.zeros_like(values), 0, never)
        first_bad = torch.where(values.isfinite(), never, float(step)).minimum(entry.first_bad)
        self.sums[names] = Sums(entry.values + values, entry.steps + 1, first_bad)

    def means(self) -> dict[str, float]:
        """Mean of every term over the epoch so far (waits for the device); not-finite ones stop the run."""
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        bad: list[tuple[float, str]] = []
        for names, entry in self.sums.items():
            for name, value, first in zip(names, entry.values.tolist(), entry.first_bad.tolist(), strict=True):
                sums[name] = sums.get(name, 0.0) + value
                counts[name] = counts.get(name, 0) + entry.steps
                if math.isfinite(first) and name != "total":
                    bad.append((first, name))
        if bad:
            step, culprit = min(bad)
            raise NotFinite.at(self.name, culprit, int(step))
        return {name: value / counts[name] for name, value in sums.items()}

    def digest(self) -> int:
        """A checksum of the bits of weights and buffers (waits for the device)."""
        kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        tensors = [t.detach().contiguous() for t in self.method.state_dict().values() if isinstance(t, Tensor)]
        sums = [t.view(kinds[t.element_size()]).sum() for t in tensors if t.numel()]
        return zlib.crc32(str(torch.stack(sums).tolist()).encode()) if sums else 0

    def learning_rates(self) -> dict[str, float]:
        """Largest current rate of each optimiser."""
        return {n: max(g["lr"] for g in o.optimizer.param_groups) for n, o in self.optims.items()}

    def require_finite(self, step: int) -> None:
        """Weights that are not finite after ``step`` must never reach a checkpoint (waits for the device)."""
        found = [(name, p.detach().isfinite().all()) for name, p in self.method.trained_parameters()]
        if found and not torch.stack([finite for _, finite in found]).all():
            raise NotFinite.at(self.name, next(name for name, finite in found if not finite), step, "weight")

    def sums_state(self) -> list[Any]:
        """The running sums of the epoch, as a checkpoint can hold them."""
        return [[list(names), entry.values, entry.steps, entry.first_bad] for names, entry in self.sums.items()]

    def restore_sums(self, state: list[Any]) -> None:
        """Continue with such sums."""
        device = self.compute.device
        self.sums = {
            tuple(names): Sums(values.to(device), steps, first.to(device)) for names, values, steps, first in state
        }

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint must hold."""
        with plugin_call(self.name, "state_dict"):
            weights = self.method.state_dict()
        return {
            "method": weights,
            "optims": {name: optim.optimizer.state_dict() for name, optim in self.optims.items()},
            "scaler": self.scaler.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        try:
            with plugin_call(self.name, "load_state_dict", passes=_UNFIT):
                self.method.load_state_dict(state["method"])
            for name, optim in self.optims.items():
                optim.optimizer.load_state_dict(state["optims"][name])
            self.scaler.load_state_dict(state["scaler"])
        except _UNFIT as fault:
            if out_of_memory(fault):
                raise memory_error(f"the checkpoint of '{self.name}'") from fault
            raise GcdbenchError(
                f"The checkpoint does not fit the method '{self.name}' ({type(fault).__name__}). "
                "Delete it or use --force to start the run again."
            ) from fault
