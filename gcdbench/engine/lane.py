"""A lane: one method instance with its optimisers, trained on batches that somebody else prepares."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gcdbench.contracts import Batch, Losses, Method, Progress, Stage
from gcdbench.engine.device import Compute
from gcdbench.engine.faults import plugin_call
from gcdbench.errors import PluginError, TrainingError


class Lane:
    """Steps a method and keeps the running means of its loss terms on the device."""

    def __init__(self, name: str, method: Method, compute: Compute) -> None:
        self.name = name
        self.method = method
        self.compute = compute
        self.scaler = compute.scaler()
        self.sums: dict[str, Tensor] = {}
        self.count = 0

    def start_stage(self, stage: Stage) -> None:
        """Ask the method for the stage's optimisers."""
        with plugin_call(self.name, "optimizers"):
            self.optims = self.method.optimizers(stage)
        for optim in self.optims.values():
            for group in optim.optimizer.param_groups:
                group["initial_lr"] = group["lr"]

    def start_epoch(self, t: Progress) -> None:
        """Set learning rates and forget the last epoch's sums."""
        for optim in self.optims.values():
            for group in optim.optimizer.param_groups:
                group["lr"] = optim.schedule(group["initial_lr"], t)
        self.sums, self.count = {}, 0

    def step(self, batch: Batch, t: Progress) -> None:
        """One optimiser step; nothing in here makes the host wait for the device."""
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
        active = self.method.active(t)
        for name, optim in self.optims.items():
            if active is None or name in active:
                self.scaler.step(optim.optimizer)
        self.scaler.update()
        self._accumulate(losses, total)
        with plugin_call(self.name, "on_step_end"), torch.no_grad():
            self.method.on_step_end(batch, t)

    def _check(self, losses: Any) -> None:
        if not isinstance(losses, Losses) or not losses:
            raise PluginError(f"The method '{self.name}' must return at least one named loss from forward.")
        for name, term in losses.items():
            if term.value.ndim != 0:
                shape = tuple(term.value.shape)
                raise PluginError(f"The loss term '{name}' of '{self.name}' has shape {shape}; it must be one number.")

    def _accumulate(self, losses: Losses, total: Tensor) -> None:
        for name, value in (("total", total), *((n, t.value) for n, t in losses.items())):
            detached = value.detach().float()
            self.sums[name] = self.sums[name] + detached if name in self.sums else detached
        self.count += 1

    def means(self) -> dict[str, float]:
        """Mean of every term over the epoch so far (waits for the device); not-finite ones stop the run."""
        if not self.sums:
            return {}
        values = (torch.stack(list(self.sums.values())) / self.count).tolist()
        found = dict(zip(self.sums, values, strict=True))
        bad = [name for name, value in found.items() if not math.isfinite(value)]
        if bad:
            culprit = next((n for n in bad if n != "total"), bad[0])
            raise TrainingError(
                f"The loss term '{culprit}' of '{self.name}' is not finite. Lower train.lr, or use "
                "--precision fp32 or bf16; the last checkpoint is from before this epoch."
            )
        return found

    def learning_rates(self) -> dict[str, float]:
        """Largest current rate of each optimiser."""
        return {n: max(g["lr"] for g in o.optimizer.param_groups) for n, o in self.optims.items()}

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint must hold."""
        return {
            "method": self.method.state_dict(),
            "optims": {name: optim.optimizer.state_dict() for name, optim in self.optims.items()},
            "scaler": self.scaler.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.method.load_state_dict(state["method"])
        for name, optim in self.optims.items():
            optim.optimizer.load_state_dict(state["optims"][name])
        self.scaler.load_state_dict(state["scaler"])
