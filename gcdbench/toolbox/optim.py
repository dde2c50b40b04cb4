"""Optimisers of GCD recipes and the schedules of their rates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gcdbench.config.sections import TrainConfig
from gcdbench.contracts import Method, Optim, Progress


@dataclass(frozen=True)
class CosinePerEpoch:
    """From the group's rate to ``floor`` (the same absolute floor for every group) along half a cosine."""

    floor: float

    def __call__(self, initial: float, t: Progress) -> float:
        """The rate of epoch ``t.epoch``."""
        return self.floor + (initial - self.floor) * (1 + math.cos(math.pi * t.epoch / t.epochs)) / 2


@dataclass(frozen=True)
class StepsPerEpoch:
    """A tenth of the rate after each milestone."""

    milestones: tuple[float, ...]
    """Shares of training, from 0 to 1."""

    def __call__(self, initial: float, t: Progress) -> float:
        """The rate of epoch ``t.epoch``."""
        passed = sum(t.epoch >= round(share * t.epochs) for share in self.milestones)
        return initial * 0.1**passed


@dataclass(frozen=True)
class WarmupCosine:
    """Linear from ``floor`` to the rate, which the last epoch of the warm-up has; then half a cosine down again."""

    warmup: int
    floor: float

    def __call__(self, initial: float, t: Progress) -> float:
        """The rate of epoch ``t.epoch``."""
        warmup = min(self.warmup, t.epochs - 1)
        if t.epoch < warmup:
            return self.floor + (initial - self.floor) * t.epoch / max(1, warmup - 1)
        done = (t.epoch - warmup) / max(1, t.epochs - warmup)
        return self.floor + (initial - self.floor) * (1 + math.cos(math.pi * done)) / 2


def fuses(parameters: Iterable[nn.Parameter], config: TrainConfig) -> bool | None:
    """Whether an optimiser of torch may take its fused form; None leaves the choice to torch.

    It is one pass over the parameters and, under loss scaling on CUDA, does not make the host wait for the overflow
    check. On a CPU it would step in spite of an overflow; on the meta device it does not exist.
    """
    kinds = {p.device.type for p in parameters}
    return kinds == {"cuda"} or (kinds == {"cpu"} and config.precision != "fp16") or None


def sgd(groups: Iterable[dict[str, Any]], config: TrainConfig) -> Optim:
    """SGD with momentum over parameter groups, with the cosine schedule."""
    listed = list(groups)
    fused = fuses((p for group in listed for p in group["params"]), config)
    optimizer = torch.optim.SGD(listed, lr=config.lr, momentum=config.momentum, weight_decay=0.0, fused=fused)
    optimizer.register_step_pre_hook(_late_comers)
    return Optim(optimizer, CosinePerEpoch(config.lr * config.lr_floor))


def _late_comers(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """A parameter whose first gradient comes later than others' (a term that starts late) begins with a momentum of
    zero, which gives the same step; the fused form refuses to mix parameters with and without one."""
    for group in optimizer.param_groups:
        graded = [p for p in group["params"] if p.grad is not None]
        new = [p for p in graded if optimizer.state[p].get("momentum_buffer") is None]
        if group["momentum"] and new and len(new) < len(graded):
            for parameter in new:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def decay_groups(parameters: Iterable[tuple[str, nn.Parameter]], config: TrainConfig) -> list[dict[str, Any]]:
    """Two groups: weight decay on matrices, none on biases and other one-dimensional parameters."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in parameters:
        (plain if parameter.ndim <= 1 or name.endswith(".bias") else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return [g for g in groups if g["params"]]


def sgd_on(parameters: Iterable[nn.Parameter], config: TrainConfig) -> Optim:
    """SGD over one group of parameters, all of them decayed."""
    return sgd([{"params": list(parameters), "weight_decay": config.weight_decay}], config)


def default_optim(method: Method, config: TrainConfig) -> Optim:
    """What SimGCD's recipe uses and most methods keep."""
    return sgd(decay_groups(method.trained_parameters(), config), config)
