"""CMS: contrastive learning of features that mean shift gathers, and agglomerative clustering of what it gathered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench import Batch, Losses, Method, Optim, Pool, Prediction, Progress, Stage, Task, Traits
from gcdbench.errors import UsageError
from gcdbench.toolbox.heads import ContrastiveHead
from gcdbench.toolbox.losses import supervised_contrastive
from gcdbench.toolbox.optim import sgd_on
from gcdbench.toolbox.predicting import predict_by_clusters
from gcdbench_cms.clustering import Shifting, shift_and_cut
from gcdbench_cms.losses import decoupled_contrastive
from gcdbench_cms.meanshift import neighbour_mean, shifted


@dataclass(frozen=True)
class CMSConfig:
    """Settings of CMS."""

    temperature: float = 0.25
    """Temperature of the contrastive loss on shifted features; the authors take 0.3 on generic datasets."""
    supcon_temp: float = 0.07
    """Temperature of the supervised contrastive loss."""
    sup_weight: float = 0.35
    """Share of the supervised contrastive loss."""
    neighbours: int = 8
    """Neighbours whose mean a feature is shifted to."""
    alpha: float = 0.5
    """How far a feature is shifted: 0 not at all, 1 onto the mean of its neighbours."""
    head_hidden: int = 2048
    """Width of the head's hidden layers."""
    head_narrow: int = 256
    """Width of the head's narrow layer."""
    head_out: int = 768
    """Width of the features that are learnt and clustered."""
    rounds: int = 20
    """Rounds of mean shift at the end, at most."""
    patience: int = 2
    """Rounds without a better accuracy of labelled rows after which the mean shift ends."""
    aliased_shift: bool = False
    """Shift rows in place from the second round on, as the released code does: later rows see shifted earlier ones."""
    find_k: bool = False
    """Find the number of classes (from the labels of labelled rows) instead of being told it."""
    largest_k: int = 1000
    """Largest number of classes that is considered with `find_k`."""

    def __post_init__(self) -> None:
        if min(self.temperature, self.supcon_temp) <= 0:
            raise UsageError("method.temperature and method.supcon_temp must be positive.")
        for name in ("sup_weight", "alpha"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must lie between 0 and 1.")
        for name in ("neighbours", "head_hidden", "head_narrow", "head_out", "rounds", "patience", "largest_k"):
            if getattr(self, name) < 1:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must be at least 1.")


class CMS(Method):
    """Contrastive mean-shift learning (Choi, Kang, Cho; CVPR 2024)."""

    Config: ClassVar[type] = CMSConfig
    traits: ClassVar[Traits] = Traits(inductive=False)
    recipes: ClassVar[tuple[str, ...]] = ("paper", "released", "unknown-k")

    def __init__(self, config: CMSConfig, task: Task) -> None:
        super().__init__(config, task)
        if config.find_k and config.largest_k < task.num_base:
            raise UsageError(
                f"method.largest_k is {config.largest_k}, but there are {task.num_base} base classes already."
            )
        self.tail = task.backbone.tail(norm=True)
        widths = (config.head_hidden, config.head_narrow, config.head_out)
        self.head = ContrastiveHead(task.backbone.embed_dim, *widths, task.generator)
        self.bank: Tensor | None = None
        """(2 rows, width) features of both views of every training row at the start of the epoch."""

    @classmethod
    def finds_k(cls, config: Any) -> bool:
        """As the settings say."""
        return bool(config.find_k)

    def embed(self, tokens: Tensor) -> Tensor:
        """(rows, width) features of length one."""
        return F.normalize(self.head(self.tail(tokens)[:, 0]), dim=1)

    def on_epoch_start(self, pool: Pool, t: Progress) -> None:
        """Rebuild the bank from two random views of every training row."""
        self.bank = torch.cat([pool.features(self.embed, views="train") for _ in range(2)])

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """The contrastive loss of shifted features and the supervised contrastive loss of plain ones."""
        c: CMSConfig = self.config
        features = self.embed(batch.tokens)
        bank = features.detach() if self.bank is None else self.bank
        moved = shifted(features, neighbour_mean(features.detach(), bank, c.neighbours), c.alpha)
        losses = Losses()
        losses.add("meanshift", decoupled_contrastive(moved, c.temperature), 1 - c.sup_weight)
        supcon = supervised_contrastive(features, batch.target, batch.labelled, c.supcon_temp)
        losses.add("supcon", supcon, c.sup_weight)
        return losses

    def on_step_end(self, batch: Batch, t: Progress) -> None:
        """The next epoch has a bank of its own: the checkpoint between them need not hold this one."""
        if t.step + 1 == t.steps_per_epoch:
            self.bank = None

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """SGD over one group: everything is decayed, biases too."""
        return {"main": sgd_on((p for _, p in self.trained_parameters()), self.task.train)}

    def features(self, tokens: Tensor) -> Tensor:
        """What is clustered."""
        return self.embed(tokens)

    def predict(self, pool: Pool) -> Prediction:
        """Mean shift and agglomerative clustering of all rows, cut at the given or at the best number of clusters."""
        c: CMSConfig = self.config
        base, given_k = self.task.num_base, self.task.num_classes
        features = pool.features(self.embed)
        low, high = (base, c.largest_k) if c.find_k else (given_k, given_k)
        settings = Shifting(c.neighbours, c.alpha, c.rounds, c.patience, c.aliased_shift)
        labels = pool.once(
            lambda: torch.from_numpy(shift_and_cut(features, pool.target, base, low, high, settings).labels())
        )
        return predict_by_clusters(pool, self.embed, features, labels.numpy(), base)

    def get_extra_state(self) -> dict[str, Any]:
        """The bank: its size is that of the training set, which is not known when the method is built."""
        return {"bank": self.bank}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue with a saved bank."""
        bank = state["bank"]
        self.bank = None if bank is None else bank.to(self.head.last.weight.device)

    @classmethod
    def reference_config(cls, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """The published implementation's names for these settings."""
        args = settings["args"]
        named = {"temperature": args["temperature"], "neighbours": args["k"], "alpha": args["alpha"]}
        return {**named, **ContrastiveHead.reference_widths(shapes)}

    def reference_names(self) -> dict[str, str]:
        """Names in the published implementation."""
        return ContrastiveHead.reference_names("head")
