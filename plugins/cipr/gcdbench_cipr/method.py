"""CiPR: contrastive learning with labels and with the clusters that selective neighbours find in each epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gcdbench import Batch, Losses, Method, Optim, Pool, Prediction, Progress, Stage, Task, Traits
from gcdbench.errors import UsageError
from gcdbench.toolbox.heads import ContrastiveHead
from gcdbench.toolbox.losses import info_nce, supervised_contrastive
from gcdbench.toolbox.optim import sgd
from gcdbench.toolbox.predicting import predict_by_clusters
from gcdbench_cipr.class_number import SHOWN, class_number
from gcdbench_cipr.snc import hierarchy


@dataclass(frozen=True)
class CiPRConfig:
    """Settings of CiPR."""

    supcon_temp: float = 0.07
    """Temperature of the contrastive loss of labelled rows."""
    pseudo_temp: float = 0.12
    """Temperature of the contrastive loss of all rows with the clusters as classes."""
    pseudo_weight: float = 12 / 7
    """Weight of that loss: its temperature divided by 0.07, by which the authors' loss class multiplies."""
    partition: int = 1
    """Level of the hierarchy that gives the clusters; 0 is the finest."""
    warmup_epochs: int = 0
    """First epochs with plain InfoNCE (temperature 1) in place of the clusters."""
    head_lr: float = 0.1
    """Learning rate of the head; the tail has `train.lr`. Both fall to the same floor."""
    head_hidden: int = 2048
    """Width of the head's hidden layers."""
    head_narrow: int = 256
    """Width of the head's narrow layer."""
    head_out: int = 65536
    """Directions of the head's last layer."""
    find_k: bool = False
    """Find the number of classes (from the labels of labelled rows) instead of being told it. Training needs none."""
    shown: float = SHOWN
    """Share of the base classes whose labels the search with `find_k` sees; the others judge it."""
    largest_k: int = 1000
    """Largest number of classes that is considered with `find_k`."""

    def __post_init__(self) -> None:
        if min(self.supcon_temp, self.pseudo_temp) <= 0:
            raise UsageError("method.supcon_temp and method.pseudo_temp must be positive.")
        for name in ("pseudo_weight", "partition", "warmup_epochs", "head_lr"):
            if getattr(self, name) < 0:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must not be negative.")
        if not 0 <= self.shown < 1:
            raise UsageError(f"method.shown is {self.shown}; it is a share below 1 of the base classes.")
        for name in ("head_hidden", "head_narrow", "head_out", "largest_k"):
            if getattr(self, name) < 1:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must be at least 1.")


class CiPR(Method):
    """Cross-instance positive relations (Hao, Han, Wong; TMLR 2024)."""

    Config: ClassVar[type] = CiPRConfig
    traits: ClassVar[Traits] = Traits(inductive=False)
    recipes: ClassVar[tuple[str, ...]] = ("released", "unknown-k")

    def __init__(self, config: CiPRConfig, task: Task) -> None:
        super().__init__(config, task)
        if config.find_k and config.largest_k < task.num_base:
            raise UsageError(
                f"method.largest_k is {config.largest_k}, but there are {task.num_base} base classes already."
            )
        self.tail = task.backbone.tail(norm=True)
        widths = (config.head_hidden, config.head_narrow, config.head_out)
        self.head = ContrastiveHead(task.backbone.embed_dim, *widths, task.generator)
        self.pseudo: Tensor | None = None
        """Cluster of every training row, by its number; None before the first epoch."""

    @classmethod
    def finds_k(cls, config: Any) -> bool:
        """As the settings say."""
        return bool(config.find_k)

    def features(self, tokens: Tensor) -> Tensor:
        """CLS: what is clustered."""
        found: Tensor = self.tail(tokens)[:, 0]
        return found

    def on_epoch_start(self, pool: Pool, t: Progress) -> None:
        """Cluster all rows; each row's cluster is its class for this epoch."""
        features = pool.features(self.features)

        def cluster() -> Tensor:
            levels = hierarchy(features, pool.target).levels
            return torch.from_numpy(levels[min(self.config.partition, len(levels) - 1)])

        pseudo = np.full(int(pool.index.max()) + 1, -1, dtype=np.int64)
        pseudo[pool.index] = pool.once(cluster).cpu().numpy()
        self.pseudo = torch.from_numpy(pseudo).to(features.device)

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """The contrastive losses of labelled rows and of all rows."""
        c: CiPRConfig = self.config
        z = self.head(self.tail(batch.tokens)[:, 0])
        losses = Losses()
        losses.add("supcon", supervised_contrastive(z, batch.target, batch.labelled, c.supcon_temp))
        if t.epoch < c.warmup_epochs or self.pseudo is None:
            losses.add("self", info_nce(z, 1.0))
        else:
            everyone = batch.labelled | ~batch.labelled
            pseudo = supervised_contrastive(z, self.pseudo[batch.index], everyone, c.pseudo_temp)
            losses.add("pseudo", pseudo, c.pseudo_weight)
        return losses

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """SGD, everything decayed, with rates of their own for tail and head."""
        train = self.task.train
        tail, head = ([p for p in part.parameters() if p.requires_grad] for part in (self.tail, self.head))
        decay = {"weight_decay": train.weight_decay}
        return {"main": sgd([{"params": tail, **decay}, {"params": head, "lr": self.config.head_lr, **decay}], train)}

    def predict(self, pool: Pool) -> Prediction:
        """The clusters of all rows, joined until the given or the found number is left."""
        c: CiPRConfig = self.config
        base = self.task.num_base
        features = pool.features(self.features)

        def cut() -> Tensor:
            k = self.task.num_classes
            if c.find_k:
                k = class_number(features, pool.target, base, (base, c.largest_k), c.shown).k
            return torch.from_numpy(hierarchy(features, pool.target).cut(k))

        return predict_by_clusters(pool, self.features, features, pool.once(cut).cpu().numpy(), base)

    def get_extra_state(self) -> dict[str, Any]:
        """The clusters: there are as many numbers as training rows."""
        return {"pseudo": self.pseudo}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue with saved clusters."""
        pseudo = state["pseudo"]
        self.pseudo = None if pseudo is None else pseudo.to(self.head.last.weight.device)

    def reference_names(self) -> dict[str, str]:
        """Names in the published implementation."""
        return ContrastiveHead.reference_names("head")
