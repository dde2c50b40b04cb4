"""EAGC: a parametric method behind one more layer, whose gradients are coordinated with what is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from gcdbench_legogcd import LegoGCD, LegoGCDConfig
from gcdbench_simgcd import SimGCD
from torch import Tensor, nn

from gcdbench import Batch, Losses, Method, Optim, Pool, Prediction, Progress, Stage, Task
from gcdbench.errors import UsageError
from gcdbench.toolbox.heads import CosineClassifier, start_as_linear
from gcdbench.toolbox.losses import cross_entropy
from gcdbench.toolbox.optim import CosinePerEpoch, decay_groups, sgd
from gcdbench.toolbox.predicting import predict_by_logits
from gcdbench_eagc.coordinate import Coordinated, Rules, energy, known_subspace, pull

REFERENCE, DISCOVER = "reference", "discover"


@dataclass(frozen=True)
class EAGCConfig(LegoGCDConfig):
    """Settings of EAGC; those of the method it is put on besides (LegoGCD's count with `base` legogcd only)."""

    base: Literal["simgcd", "legogcd"] = "simgcd"
    """The method whose gradients are coordinated."""
    aperture: float = 2.0
    """How much of the feature space counts as known: the larger, the more."""
    push: float = 0.5
    """How much of the gradient in the known subspace is taken away from rows that lie outside it."""
    pull: float = 0.7
    """Weight of the pull of labelled rows towards the reference model."""
    energy_momentum: float = 0.95
    """Momentum of the running mean energy of labelled rows."""
    head_lr: float = 1.0
    """Learning rate of everything but the tail in discovery; both rates fall to the same floor."""
    reference_epochs: int = 30
    """Epochs of supervised training of the reference model."""
    reference_lr: float = 0.02
    """Its learning rate."""
    reference_decay: float = 1e-4
    """Its weight decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("aperture", "head_lr", "reference_lr"):
            if getattr(self, name) <= 0:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must be positive.")
        for name in ("push", "pull", "reference_decay"):
            if getattr(self, name) < 0:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must not be negative.")
        if not 0 <= self.energy_momentum <= 1:
            raise UsageError(f"method.energy_momentum is {self.energy_momentum}; it must lie between 0 and 1.")
        if self.reference_epochs < 1:
            raise UsageError(f"method.reference_epochs is {self.reference_epochs}; it must be at least 1.")


class AdaptedTail(nn.Module):
    """A tail with one more layer behind its CLS, where gradients are changed on their way back."""

    def __init__(self, tail: nn.Module, dim: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.tail = tail
        self.layer = nn.Linear(dim, dim)
        start_as_linear(self.layer.weight, generator)
        if self.layer.bias.device.type != "meta":
            start_as_linear(self.layer.bias, generator, dim)
        self.rules: Rules | None = None
        """What is done to gradients, while a batch of discovery passes."""
        self.seen: Tensor | None = None
        """CLS of that batch, with its gradient."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(rows, 1, dim), as a tail that reads CLS."""
        cls = self.tail(tokens)[:, 0]
        if self.rules is not None and torch.is_grad_enabled():
            self.seen = cls
            cls = Coordinated.apply(cls, self.rules)  # type: ignore[no-untyped-call]
        found: Tensor = self.layer(cls).relu()[:, None]
        return found


class EAGC(Method):
    """Energy-aware gradient coordination (CVPR 2026), on SimGCD or LegoGCD."""

    Config: ClassVar[type] = EAGCConfig
    recipes: ClassVar[tuple[str, ...]] = ("simgcd", "legogcd")
    subspace: Tensor
    usual: Tensor

    def __init__(self, config: EAGCConfig, task: Task) -> None:
        super().__init__(config, task)
        dim = task.backbone.embed_dim
        self.base: SimGCD = (SimGCD if config.base == "simgcd" else LegoGCD)(config, task)
        self.adapted = AdaptedTail(self.base.tail, dim, task.generator)
        self.base.tail = self.adapted
        self.known = CosineClassifier(dim, task.num_base, task.generator)
        self.reference_tail = task.backbone.tail(norm=True).requires_grad_(False)
        self.register_buffer("subspace", torch.zeros(dim, dim))
        self.register_buffer("usual", torch.ones(()))

    def stages(self) -> Sequence[Stage]:
        """A reference model of the base classes, then discovery, which begins with its tail."""
        return (Stage(REFERENCE, self.config.reference_epochs), Stage(DISCOVER, self.task.train.epochs))

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """SGD; in discovery with a rate of its own for everything but the tail."""
        c, train = self.config, self.task.train
        tail = [("tail." + n, p) for n, p in self.adapted.tail.named_parameters() if p.requires_grad]
        if stage.name == REFERENCE:
            groups = decay_groups([*tail, *self.known.named_parameters(prefix="known")], train)
            for group in groups:
                group["lr"] = c.reference_lr
                group["weight_decay"] = c.reference_decay if group["weight_decay"] else 0.0
            floor = c.reference_lr * train.lr_floor
        else:
            rest = [
                *self.adapted.layer.named_parameters(prefix="layer"),
                *self.base.projector.named_parameters(prefix="projector"),
                *self.base.classifier.named_parameters(prefix="classifier"),
            ]
            heads = decay_groups(rest, train)
            for group in heads:
                group["lr"] = c.head_lr
            groups = [*decay_groups(tail, train), *heads]
            floor = train.lr * train.lr_floor
        return {"main": Optim(sgd(groups, train).optimizer, CosinePerEpoch(floor))}

    def on_epoch_start(self, pool: Pool, t: Progress) -> None:
        """Discovery begins with a frozen copy of the reference model, and where its labelled features lie."""
        if t.stage != DISCOVER or t.epoch:
            return
        with torch.no_grad():
            self.reference_tail.load_state_dict(self.adapted.tail.state_dict())
        features = pool.features(lambda tokens: self.reference_tail(tokens)[:, 0])
        known = features[torch.from_numpy(pool.labelled).to(features.device)].float()
        self.subspace.copy_(known_subspace(known, self.config.aperture))
        if len(known):
            self.usual.copy_(energy(known, self.subspace).mean())

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """Cross entropy of labelled rows for the reference model; then the terms of the method this is put on."""
        c: EAGCConfig = self.config
        labelled = batch.labelled.repeat(2)
        if t.stage == REFERENCE:
            logits = self.known(self.adapted.tail(batch.tokens)[:, 0])
            known = Losses()
            known.add("ce", cross_entropy(logits, batch.target.repeat(2), labelled, c.student_temp))
            return known
        with torch.no_grad():
            self.reference_tail.eval()
            reference = self.reference_tail(batch.tokens)[:, 0]
        self.adapted.rules = Rules(self.subspace, self.usual.clone(), labelled, c.push)
        try:
            losses: Losses = self.base(batch, t)
        finally:
            seen, self.adapted.seen, self.adapted.rules = self.adapted.seen, None, None
        if seen is not None:  # there is a gradient
            losses.add("pull", pull(seen, reference, labelled), c.pull)
            if self.training:
                self._remember(seen.detach(), labelled)
        return losses

    @torch.no_grad()
    def _remember(self, features: Tensor, labelled: Tensor) -> None:
        """The running mean energy of labelled rows."""
        use = labelled.to(self.subspace.dtype)
        mean = (energy(features, self.subspace) * use).sum() / use.sum().clamp(min=1)
        moved = self.config.energy_momentum * self.usual + (1 - self.config.energy_momentum) * mean
        self.usual.copy_(torch.where(use.sum() > 0, moved, self.usual))

    def logits(self, tokens: Tensor) -> dict[str, Tensor]:
        """Class cosines."""
        return self.base.logits(tokens)

    def features(self, tokens: Tensor) -> Tensor:
        """CLS, before the added layer."""
        found: Tensor = self.adapted.tail(tokens)[:, 0]
        return found

    def predict(self, pool: Pool) -> Prediction:
        """Argmax over all classes."""
        return predict_by_logits(pool, self.logits, self.task.num_base, self.config.student_temp)
