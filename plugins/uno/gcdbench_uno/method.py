"""UNO+: one objective for labelled and unlabelled rows, by swapped Sinkhorn pseudo-labels on several heads.

UNO is for novel classes alone (every unlabelled row is of one). In its adaptation to GCD the heads' outputs are put
together, and the assignment of unlabelled rows runs over all classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gcdbench import Batch, Losses, Method, Optim, Pool, Prediction, Progress, Stage, Task, TrainConfig
from gcdbench.errors import UsageError
from gcdbench.toolbox.losses import cross_entropy, wide
from gcdbench.toolbox.optim import WarmupCosine, sgd_on
from gcdbench.toolbox.predicting import predict_by_logits
from gcdbench.toolbox.regularisers import RegulariserSlot, regularise
from gcdbench_uno.heads import ClusterHead, Prototypes
from gcdbench_uno.losses import swapped_prediction


@dataclass(frozen=True)
class UNOConfig(RegulariserSlot):
    """Settings of UNO+."""

    pretrain_epochs: int = 100
    """Epochs of supervised training on labelled rows before discovery."""
    pretrain_decay: float = 1e-4
    """Weight decay of the supervised stage; discovery has `train.weight_decay`."""
    heads: int = 4
    """Heads that cluster, and as many that over-cluster."""
    overcluster: int = 3
    """Prototypes of an over-clustering head for each novel class."""
    unit_features: bool = False
    """Give the clustering heads features of length one; UNO gives them the features as they are."""
    answer: Literal["smallest_loss", "first"] = "smallest_loss"
    """Which clustering head answers: the one with the smallest loss in the last epoch, or always the first."""
    temperature: float = 0.1
    """Temperature of the predictions."""
    sinkhorn_epsilon: float = 0.05
    """Sharpness of the assignments: smaller is harder."""
    sinkhorn_iterations: int = 3
    """Iterations of Sinkhorn-Knopp."""
    warmup_epochs: int = 10
    """Epochs of either stage over which the learning rate rises linearly."""
    projector_hidden: int = 2048
    """Width of the projectors' hidden layer."""
    projector_out: int = 256
    """Width of the projectors' output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.temperature, self.sinkhorn_epsilon) <= 0:
            raise UsageError("method.temperature and method.sinkhorn_epsilon must be positive.")
        for name in ("heads", "overcluster", "sinkhorn_iterations", "projector_hidden", "projector_out"):
            if getattr(self, name) < 1:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must be at least 1.")
        if min(self.pretrain_epochs, self.pretrain_decay, self.warmup_epochs) < 0:
            raise UsageError("method.pretrain_epochs, pretrain_decay and warmup_epochs must not be negative.")


class UNO(Method):
    """A unified objective for novel class discovery (Fini et al., ICCV 2021), adapted to GCD."""

    Config: ClassVar[type] = UNOConfig
    recipes: ClassVar[tuple[str, ...]] = ("adapted", "gcd-authors")
    head_loss: Tensor

    def __init__(self, config: UNOConfig, task: Task) -> None:
        super().__init__(config, task)
        dim, novel = task.backbone.embed_dim, task.num_classes - task.num_base
        self.tail = task.backbone.tail(norm=True)
        self.labelled_head = Prototypes(dim, task.num_base, task.generator)
        self.cluster_heads = self._heads(dim, novel)
        self.over_heads = self._heads(dim, novel * config.overcluster)
        self.register_buffer("head_loss", torch.zeros(config.heads))

    def _heads(self, dim: int, prototypes: int) -> nn.ModuleList:
        c: UNOConfig = self.config
        if not prototypes:  # K is the number of base classes: there is nothing to discover
            return nn.ModuleList()
        widths = (c.projector_hidden, c.projector_out)
        return nn.ModuleList(ClusterHead(dim, *widths, prototypes, self.task.generator) for _ in range(c.heads))

    def stages(self) -> Sequence[Stage]:
        """Supervised training on labelled rows, then discovery."""
        return (Stage("pretrain", self.config.pretrain_epochs), Stage("discover", self.task.train.epochs))

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """SGD over one group, everything decayed, whose rate warms up and falls along a cosine."""
        train: TrainConfig = self.task.train
        modules: tuple[nn.Module, ...] = (self,)
        if stage.name == "pretrain":
            modules = (self.tail, self.labelled_head)
            train = dataclasses.replace(train, weight_decay=self.config.pretrain_decay)
        optim = sgd_on((p for module in modules for p in module.parameters() if p.requires_grad), train)
        return {"main": Optim(optim.optimizer, WarmupCosine(self.config.warmup_epochs, train.lr * train.lr_floor))}

    def on_epoch_start(self, pool: Pool, t: Progress) -> None:
        """The best head is that with the smallest loss of an epoch; prototypes begin it with length one."""
        self.head_loss.zero_()
        self._normalise()

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """Cross entropy of labelled rows; in discovery the swapped predictions of all heads."""
        c: UNOConfig = self.config
        cls = self.features(batch.tokens)
        known = self.labelled_head(cls)
        losses = Losses()
        if t.stage == "pretrain":
            ce = cross_entropy(known, batch.target.repeat(2), batch.labelled.repeat(2), c.temperature)
            losses.add("ce", ce)
            return losses
        clusters = self._logits(cls, known, self.cluster_heads)
        found = torch.stack([self._swapped(logits, batch) for logits in clusters])
        if self.training and len(found) == len(self.head_loss):
            self.head_loss += found.detach()
        losses.add("cluster", found.mean(), 0.5)
        over = [self._swapped(logits, batch) for logits in self._logits(cls, known, self.over_heads)]
        losses.add("overcluster", torch.stack(over).mean(), 0.5)
        regularise(losses, c, *clusters)
        return losses

    def on_step_end(self, batch: Batch, t: Progress) -> None:
        """Prototypes have length one before every step."""
        self._normalise()

    def _normalise(self) -> None:
        for module in self.modules():
            if isinstance(module, Prototypes):
                module.normalise()

    def _swapped(self, logits: Tensor, batch: Batch) -> Tensor:
        c: UNOConfig = self.config
        return swapped_prediction(
            logits, batch.target, batch.labelled, c.temperature, c.sinkhorn_epsilon, c.sinkhorn_iterations
        )

    def _logits(self, cls: Tensor, known: Tensor, heads: nn.ModuleList) -> list[Tensor]:
        """Per head the cosines with labelled classes, then with its own prototypes.

        In training each view goes through the heads on its own, since batch norm looks at all rows it is given.
        """
        seen = F.normalize(wide(cls), dim=1) if self.config.unit_features else cls
        views = seen.chunk(2) if self.training else (seen,)
        return [torch.cat([known, torch.cat([head(v) for v in views])], dim=1) for head in heads] or [known]

    def logits(self, tokens: Tensor) -> dict[str, Tensor]:
        """Cosines of the head that answers."""
        cls = self.features(tokens)
        return {"main": self._logits(cls, self.labelled_head(cls), self._best())[0]}

    def _best(self) -> nn.ModuleList:
        if not len(self.cluster_heads):
            return self.cluster_heads
        number = 0 if self.config.answer == "first" else int(self.head_loss.argmin())
        return nn.ModuleList([self.cluster_heads[number]])

    def features(self, tokens: Tensor) -> Tensor:
        """CLS, as the heads see it."""
        found: Tensor = self.tail(tokens)[:, 0]
        return found

    def predict(self, pool: Pool) -> Prediction:
        """Argmax of the best head."""
        return predict_by_logits(pool, self.logits, self.task.num_base, self.config.temperature)

    @classmethod
    def reference_facts(cls, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """Numbers of classes, as the recorded heads have them; after the terms come the sums of the heads' losses."""
        base, novel = (shapes[f"{name}.weight"][0] for name in (LABELLED, PROTOTYPES.format("", 0)))
        heads = _count(shapes)
        return {
            "classes": base + novel,
            "base_classes": base,
            "loss_names": ["total", "cluster", "overcluster", *(f"head_loss.{head}" for head in range(heads))],
        }

    @classmethod
    def reference_config(cls, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """Discovery alone, with the recorded heads."""
        novel, over = (shapes[f"{PROTOTYPES.format(kind, 0)}.weight"][0] for kind in ("", "_over"))
        return {
            "pretrain_epochs": 0,
            "heads": _count(shapes),
            "overcluster": over // novel,
            "projector_hidden": shapes[f"{PROJECTOR.format('', 0)}.0.weight"][0],
            "projector_out": shapes[f"{PROJECTOR.format('', 0)}.3.weight"][0],
            # A recording may say it; else the variant `gcd` has features of length one, others have them as they are.
            "unit_features": settings["args"].get("unit_features", settings["variant"] == "gcd"),
        }

    def reference_names(self) -> dict[str, str]:
        """Names in the published implementation."""
        names = {f"{LABELLED}.weight": "labelled_head.weight"}
        for kind, own, heads in (
            ("", "cluster_heads", self.cluster_heads),
            ("_over", "over_heads", self.over_heads),
        ):
            for i, head in enumerate(heads):
                names[f"{PROTOTYPES.format(kind, i)}.weight"] = f"{own}.{i}.prototypes.weight"
                for name in cast(ClusterHead, head).project.state_dict():
                    names[f"{PROJECTOR.format(kind, i)}.{name}"] = f"{own}.{i}.project.{name}"
        return names


LABELLED = "head_lab.prototypes"
PROTOTYPES = "head_unlab{}.prototypes.{}.prototypes"
PROJECTOR = "head_unlab{}.projectors.{}.mlp"
"""Names in the published implementation: of the labelled head, and of each (over-)clustering one."""


def _count(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Clustering heads of a recording."""
    return sum(f"{PROTOTYPES.format('', i)}.weight" in shapes for i in range(len(shapes)))
