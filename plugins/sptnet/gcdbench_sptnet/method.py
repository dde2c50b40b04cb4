"""SPTNet: a trained SimGCD whose input gets prompts; prompts and network are trained in turns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from gcdbench_simgcd import SimGCD, SimGCDConfig
from torch import Tensor

from gcdbench import Batch, Losses, Optim, Pool, Progress, Stage, Task, Traits
from gcdbench.errors import UsageError
from gcdbench.toolbox.optim import CosinePerEpoch, decay_groups, sgd
from gcdbench_sptnet.prompts import Prompts

SIMGCD, PROMPTS = "simgcd", "prompts"
PROMPT, MODEL = "prompt", "model"


@dataclass(frozen=True)
class SPTNetConfig(SimGCDConfig):
    """Settings of SPTNet; those of SimGCD besides, which hold for the first stage."""

    simgcd_epochs: int = 200
    """Epochs of SimGCD before the prompts; `train.epochs` is that of the second stage, `train.lr` that of the first."""
    frame: int = 30
    """Width in pixels of the prompt around the image; 0 for none."""
    border: int = 1
    """Width in pixels of the prompt around each patch; 0 for none."""
    alternate_every: int = 20
    """Steps between changes of what is trained; every epoch begins with the prompts."""
    prompt_lr: float = 25.0
    """Learning rate of the prompts, which have no weight decay."""
    prompt_warmup: int = 1000
    """Steps over which it rises."""
    model_lr: float = 5e-2
    """Learning rate of the network in the second stage."""
    model_floor: float = 0.1
    """Share of it that is left at the end."""
    model_decay: float = 5e-4
    """Weight decay of the network's matrices in the second stage."""
    prompt_entropy_weight: float = 1.0
    """`entropy_weight` in the second stage."""
    prompt_teacher_epochs: int = 10
    """`teacher_temp_epochs` in the second stage."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("simgcd_epochs", "frame", "border", "prompt_warmup", "prompt_lr", "model_lr", "model_decay"):
            if getattr(self, name) < 0:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must not be negative.")
        if not self.frame and not self.border:
            raise UsageError("method.frame and method.border are both 0: there is no prompt to train.")
        if self.alternate_every < 1:
            raise UsageError(f"method.alternate_every is {self.alternate_every}; it must be at least 1.")
        if not 0 <= self.model_floor <= 1:
            raise UsageError(f"method.model_floor is {self.model_floor}; it is a share of the rate, from 0 to 1.")


@dataclass(frozen=True)
class WarmupCosinePerStep:
    """Rises over the first steps of the stage, then falls to nothing along half a cosine."""

    warmup: int

    def __call__(self, initial: float, t: Progress) -> float:
        """The rate of a step; steps of both kinds count."""
        step, steps = t.epoch * t.steps_per_epoch + t.step, t.epochs * t.steps_per_epoch
        if step < self.warmup:
            return initial * (step + 1) / self.warmup
        return initial * (1 + math.cos(math.pi * (step - self.warmup) / (steps - self.warmup))) / 2


def trains_model(step: int, every: int) -> bool:
    """Whether a step of an epoch trains the network; else it trains the prompts."""
    return (step + 1) // every % 2 == 1


class SPTNet(SimGCD):
    """Spatial prompt tuning (Wang, Vaze, Han; ICLR 2024)."""

    Config: ClassVar[type] = SPTNetConfig
    traits: ClassVar[Traits] = Traits(train_from=0)
    recipes: ClassVar[tuple[str, ...]] = ("released", "spatial")
    prompting: Tensor

    def __init__(self, config: SPTNetConfig, task: Task) -> None:
        if task.backbone.pixels is None:
            raise UsageError("SPTNet adds its prompts to pixels: it needs a ViT and backbone.train_from=0.")
        super().__init__(config, task)
        side, patch = task.backbone.pixels
        if 2 * config.frame >= side or 2 * config.border >= patch:
            raise UsageError(
                f"method.frame is {config.frame} and method.border {config.border}, but images have {side} pixels and "
                f"patches {patch}: less than half of each."
            )
        self.tail.requires_grad_(False)
        self.tail.blocks[-1].requires_grad_(True)  # type: ignore[index]
        self.prompts = Prompts(side, patch, config.frame, config.border, task.generator)
        self.register_buffer("prompting", torch.zeros(()))

    def stages(self) -> Sequence[Stage]:
        """SimGCD, then prompts and network in turns."""
        return (Stage(SIMGCD, self.config.simgcd_epochs), Stage(PROMPTS, self.task.train.epochs))

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """SimGCD's in the first stage; then one for the prompts, whose rate changes with every step, and one more."""
        c, train = self.config, self.task.train
        network = [(name, p) for name, p in self.trained_parameters() if not name.startswith("prompts.")]
        if stage.name == SIMGCD:
            return {MODEL: sgd(decay_groups(network, train), train)}
        steps = self.task.steps_per_epoch
        if stage.epochs and steps < c.alternate_every:
            raise UsageError(
                f"An epoch has {steps} steps and begins with {c.alternate_every - 1} of the "
                "prompts: the network would never be trained. Lower method.alternate_every or train.batch_size."
            )
        at = dataclasses.replace(train, weight_decay=c.model_decay, lr=c.model_lr)
        model = sgd(decay_groups(network, at), at)
        prompts = sgd([{"params": list(self.prompts.parameters())}], dataclasses.replace(train, lr=c.prompt_lr))
        return {
            PROMPT: Optim(prompts.optimizer, WarmupCosinePerStep(c.prompt_warmup), per_step=True),
            MODEL: Optim(model.optimizer, CosinePerEpoch(c.model_lr * c.model_floor)),
        }

    def active(self, t: Progress) -> tuple[str, ...]:
        """Prompts or network."""
        return (MODEL,) if self._trains_model(t) else (PROMPT,)

    def _trains_model(self, t: Progress) -> bool:
        return t.stage == SIMGCD or trains_model(t.step, self.config.alternate_every)

    def config_at(self, t: Progress) -> SPTNetConfig:
        """The second stage has an entropy weight and a warm-up of the teacher of its own."""
        c: SPTNetConfig = self.config
        if t.stage == SIMGCD:
            return c
        return dataclasses.replace(
            c, entropy_weight=c.prompt_entropy_weight, teacher_temp_epochs=c.prompt_teacher_epochs
        )

    def on_epoch_start(self, pool: Pool, t: Progress) -> None:
        """From the second stage on, whatever is looked at has prompts."""
        self.prompting.fill_(float(t.stage == PROMPTS))

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """SimGCD's terms: of both views with prompts, or of the first view without and with them."""
        images = batch.tokens
        if t.stage == PROMPTS and self._trains_model(t):
            first = images.chunk(batch.views)[0]
            with torch.no_grad():
                prompted = self.prompts(first)
            images = torch.cat([first, prompted])
        elif t.stage == PROMPTS:
            images = self.prompts(images)
        return self.terms(dataclasses.replace(batch, tokens=images), t)[0]

    def logits(self, tokens: Tensor) -> dict[str, Tensor]:
        """Class cosines."""
        return super().logits(self._prompted(tokens))

    def features(self, tokens: Tensor) -> Tensor:
        """CLS."""
        return super().features(self._prompted(tokens))

    def _prompted(self, images: Tensor) -> Tensor:
        prompted: Tensor = images + self.prompting.to(images.dtype) * (self.prompts(images) - images)
        return prompted

    @classmethod
    def reference_facts(cls, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """The published implementation's names for what a replay needs."""
        return {"lr": settings["lr_model"], "eta_min": settings["lr_model_floor"], "train_blocks_from": 0}

    @classmethod
    def reference_config(cls, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """The second stage alone, with the recorded prompts."""
        start, end = settings["teacher_temp"]
        return {
            "simgcd_epochs": 0,
            "frame": 0 if settings["variant"] == "patch" else settings["frame"],
            "border": settings["patch_prompt"],
            "alternate_every": settings["alternate_every"],
            "prompt_lr": settings["lr_prompt"],
            "prompt_warmup": settings["warmup_steps"],
            "model_lr": settings["lr_model"],
            "model_floor": settings["lr_model_floor"] / settings["lr_model"],
            "model_decay": settings["weight_decay"],
            "prompt_entropy_weight": settings["memax"],
            "prompt_teacher_epochs": settings["warmup_epochs"],
            "teacher_temp_start": start,
            "teacher_temp_end": end,
            "sup_weight": settings["sup_weight"],
            "projector_hidden": shapes["head.mlp.0.weight"][0],
            "projector_out": shapes["head.mlp.4.weight"][0],
        }

    def reference_names(self) -> dict[str, str]:
        """Names in the published implementation."""
        names = super().reference_names()
        if self.prompts.patches is not None:
            names["prompt.patch"] = "prompts.patches.values"
        if self.prompts.frame is not None:
            names |= {f"prompt.pad_{side}": f"prompts.frame.{side}" for side in ("up", "down", "left", "right")}
        return names

    def reference_tensor(self, name: str, recorded: Tensor) -> Tensor:
        """Recorded borders of patches are whole images of which the inner pixels do nothing."""
        if name != "prompt.patch" or self.prompts.patches is None:
            return recorded
        return recorded.flatten(-2)[..., self.prompts.patches.where]
