"""DCCL: GCD's contrastive training, and concepts that are found before every epoch and taught to their rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from gcdbench_baselines.contrastive import predict_by_kmeans
from gcdbench_baselines.gcd import GCD
from torch import Tensor

from gcdbench import Batch, Losses, Optim, Pool, Prediction, Progress, Stage, Task
from gcdbench.errors import UsageError
from gcdbench.toolbox.losses import info_nce, supervised_contrastive, wide
from gcdbench.toolbox.optim import sgd_on
from gcdbench.toolbox.predicting import cls_embedding
from gcdbench_dccl.concepts import Shares, centres, concept_loss, find_concepts, moved_memory
from gcdbench_dccl.config import DCCLConfig

STATE = ("concept", "memory", "sizes")


@dataclass(frozen=True)
class WarmupThenCosine:
    """A linear rise, then half a cosine."""

    warmup: int
    floor: float
    released: bool

    def __call__(self, initial: float, t: Progress) -> float:
        """The rate of epoch ``t.epoch``. As released, the first one has none, and the cosine does not end."""
        if self.released:
            if t.epoch <= self.warmup:
                return initial * t.epoch / max(1, self.warmup) if self.warmup else initial
            done = (t.epoch - self.warmup - 1) / t.epochs
        else:
            warmup = min(self.warmup, t.epochs - 1)
            if t.epoch < warmup:
                return initial * (t.epoch + 1) / (warmup + 1)
            done = (t.epoch - warmup) / max(1, t.epochs - warmup)
        return self.floor + (initial - self.floor) * (1 + math.cos(math.pi * done)) / 2


class DCCL(GCD):
    """Dynamic conceptional contrastive learning (Pu, Zhong, Sebe; CVPR 2023)."""

    Config: ClassVar[type] = DCCLConfig
    recipes: ClassVar[tuple[str, ...]] = ("paper", "released")

    def __init__(self, config: DCCLConfig, task: Task) -> None:
        super().__init__(config, task)
        if task.train.sampler != "balanced":
            raise UsageError(
                f"train.sampler is '{task.train.sampler}', but DCCL weighs rows by how often the sampler "
                "'balanced' draws them."
            )
        self.kept: dict[str, Tensor | None] = dict.fromkeys(STATE)
        """Concept of every training row by its number, the concepts' centres, and their sizes."""
        self.shares = Shares(0, 0)
        self._seen: Tensor | None = None

    def on_epoch_start(self, pool: Pool, t: Progress) -> None:
        """Find the concepts of this epoch."""
        c: DCCLConfig = self.config
        features = pool.features(self.features)
        self.shares = Shares(int(pool.labelled.sum()), int((~pool.labelled).sum()))
        last = self.kept["concept"]
        before = None
        if last is not None and len(pool) >= c.warm_start_rows:
            before = last.cpu().numpy()[pool.index]

        def find() -> Tensor:
            return torch.from_numpy(find_concepts(features, pool.target, c, pool.generator(), before))

        found = pool.once(find).to(features.device)
        by_row = torch.full((int(pool.index.max()) + 1,), -1, dtype=torch.long, device=features.device)
        by_row[torch.from_numpy(pool.index).to(features.device)] = found
        none = not bool((found >= 0).any())
        memory = None if none else centres(wide(features), found)
        sizes = None if none else torch.bincount(found[found >= 0])
        self.kept = {"concept": by_row, "memory": memory, "sizes": sizes}

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """GCD's terms, and the loss of rows with the centres of their concepts."""
        c: DCCLConfig = self.config
        cls = self.tail(batch.tokens)[:, 0]
        projection = self.head(cls)
        losses = Losses()
        losses.add("info_nce", info_nce(projection, c.info_nce_temp), 1 - c.sup_weight)
        supcon = supervised_contrastive(projection, batch.target, batch.labelled, c.supcon_temp)
        losses.add("supcon", supcon, c.sup_weight)
        concept, memory, sizes = (self.kept[name] for name in STATE)
        if concept is not None and memory is not None and sizes is not None:
            own = concept[batch.index]
            weight = self.shares.weights(own, sizes, batch.labelled)
            value = concept_loss(cls, memory, own.repeat(2), weight.repeat(2), c.concept_temp)
            losses.add("concept", value, concept_weight(c, t.epoch))
            self._seen = cls.detach()
        return losses

    def on_step_end(self, batch: Batch, t: Progress) -> None:
        """The centres follow the rows that were seen."""
        concept, memory = self.kept["concept"], self.kept["memory"]
        if self._seen is not None and concept is not None and memory is not None:
            own = concept[batch.index].repeat(2)
            self.kept["memory"] = moved_memory(memory, self._seen, own, self.config.memory_momentum)
        self._seen = None

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """SGD over one group, with a warm-up."""
        c, train = self.config, self.task.train
        plain = sgd_on((p for _, p in self.trained_parameters()), train)
        schedule = WarmupThenCosine(c.warmup_epochs, train.lr * train.lr_floor, c.schedule == "released")
        return {"main": Optim(plain.optimizer, schedule)}

    def predict(self, pool: Pool) -> Prediction:
        """Semi-supervised k-means over all rows."""
        return predict_by_kmeans(pool, cls_embedding(self.tail), self.config, self.task.num_base, self.task.num_classes)

    def get_extra_state(self) -> dict[str, Any]:
        """Concepts change in number from epoch to epoch."""
        return {**self.kept, "rows": (self.shares.labelled, self.shares.unlabelled)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue with saved concepts."""
        device = self.head.last.weight.device
        self.kept = {name: None if state[name] is None else state[name].to(device) for name in STATE}
        self.shares = Shares(*state["rows"])


def concept_weight(config: DCCLConfig, epoch: int) -> float:
    """Weight of the concept loss in an epoch."""
    start, last = config.concept_weight_start, max(1, config.concept_weight_epochs - 1)
    share = start + (1 - start) * float(np.clip(epoch / last, 0, 1))
    return config.concept_weight * share
