"""GPC: contrastive training with prototypes of a Gaussian mixture whose number of components is learnt."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench import Batch, Losses, Method, Optim, Pool, Prediction, Progress, Stage, Task, Traits
from gcdbench.errors import UsageError
from gcdbench.toolbox.heads import ContrastiveHead
from gcdbench.toolbox.kmeans import semi_supervised_kmeans
from gcdbench.toolbox.losses import info_nce, no_autocast, supervised_contrastive, wide
from gcdbench.toolbox.optim import sgd_on
from gcdbench.toolbox.predicting import cls_embedding, predict_by_clusters, without_gaps
from gcdbench_gpc.config import GPCConfig
from gcdbench_gpc.prototypes import Rules, guarded, prototype_loss, prototypes
from gcdbench_gpc.search import Search, one_round, within
from gcdbench_gpc.space import Space

STATE = ("centres", "density", "assignment", "mean", "components")


class GPC(Method):
    """Learning semi-supervised Gaussian mixture models for GCD (Zhao, Wen, Han; ICCV 2023)."""

    Config: ClassVar[type] = GPCConfig
    traits: ClassVar[Traits] = Traits(inductive=False)
    recipes: ClassVar[tuple[str, ...]] = ("paper", "released")

    def __init__(self, config: GPCConfig, task: Task) -> None:
        super().__init__(config, task)
        if config.find_k and config.largest_k < task.num_base:
            raise UsageError(
                f"method.largest_k is {config.largest_k}, but there are {task.num_base} base classes already."
            )
        self.tail = task.backbone.tail(norm=True)
        widths = (config.head_hidden, config.head_narrow, config.head_out)
        self.head = ContrastiveHead(task.backbone.embed_dim, *widths, task.generator)
        start = round(config.start_factor * max(1, task.num_base))
        self.clusters = start if config.find_k else task.num_classes
        """Clusters of the next search."""
        self.kept: dict[str, Tensor | None] = dict.fromkeys(STATE)
        """Prototypes, their densities, the prototype of every training row by its number, and the PCA."""

    @classmethod
    def finds_k(cls, config: Any) -> bool:
        """As the settings say."""
        return bool(config.find_k)

    @property
    def space(self) -> Space:
        """In which the prototypes live."""
        return Space(self.kept["mean"], self.kept["components"])

    def features(self, tokens: Tensor) -> Tensor:
        """CLS."""
        found: Tensor = self.tail(tokens)[:, 0]
        return found

    def on_epoch_start(self, pool: Pool, t: Progress) -> None:
        """New prototypes from all rows, after the warm-up."""
        c: GPCConfig = self.config
        if t.epoch < c.warmup_epochs:
            return
        features = pool.features(cls_embedding(self.tail))
        target, classes = without_gaps(pool.target, self.task.num_base)
        clusters = within(self.clusters, target, len(classes), max(c.largest_k, self.task.num_classes))
        search = Search(Rules(c.clean_merges, c.accept, c.min_rows), c.prior_scale, c.restarts, c.iterations)

        def find() -> dict[str, Tensor | None]:
            generator = pool.generator()
            generator.manual_seed(generator.initial_seed() + t.epoch)  # other coins in each epoch
            space = Space.of(features, c.dims)
            rows = space(features)
            centres = torch.from_numpy(one_round(rows, target, clusters, generator, search)).to(rows)
            made = prototypes(rows, target, centres, c.proto_temp)
            by_row = torch.full((int(pool.index.max()) + 1,), -1, dtype=torch.long)
            by_row[torch.from_numpy(pool.index)] = made.assignment.cpu()
            found = (made.centres, guarded(made.density), by_row, space.mean, space.components)
            return {name: None if x is None else x.cpu() for name, x in zip(STATE, found, strict=True)}

        self._keep(pool.once(find))
        centres = self.kept["centres"]
        if c.find_k and centres is not None:
            self.clusters = within(len(centres), target, len(classes), c.largest_k)

    def _keep(self, state: dict[str, Tensor | None]) -> None:
        device = self.head.last.weight.device
        self.kept = {name: None if state[name] is None else state[name].to(device) for name in STATE}  # type: ignore[union-attr]

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """GCD's contrastive losses and, once there are prototypes, the loss of each row's own."""
        c: GPCConfig = self.config
        cls = self.tail(batch.tokens)[:, 0]
        projection = self.head(cls)
        losses = Losses()
        losses.add("info_nce", info_nce(projection, c.info_nce_temp), 1 - c.sup_weight)
        supcon = supervised_contrastive(projection, batch.target, batch.labelled, c.supcon_temp)
        losses.add("supcon", supcon, c.sup_weight)
        centres, density, assignment = (self.kept[name] for name in ("centres", "density", "assignment"))
        if centres is not None and density is not None and assignment is not None:
            with no_autocast(cls):
                rows = self.space(F.normalize(wide(cls), dim=1))
            proto = prototype_loss(rows, centres, density, assignment[batch.index])
            losses.add("prototypes", proto, c.proto_weight)
        return losses

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """SGD over one group: everything is decayed, biases too."""
        return {"main": sgd_on((p for _, p in self.trained_parameters()), self.task.train)}

    def predict(self, pool: Pool) -> Prediction:
        """Semi-supervised k-means with the number of classes told or found, or the nearest prototypes."""
        c: GPCConfig = self.config
        embed, base = cls_embedding(self.tail), self.task.num_base
        features = pool.features(embed)
        target, classes = without_gaps(pool.target, base)
        clusters = within(self.clusters if c.find_k else self.task.num_classes, target, len(classes), len(target))

        def labels() -> Tensor:
            centres = self.kept["centres"]
            if c.answer == "prototypes" and centres is not None:
                near = (F.normalize(self.space(features), dim=1) @ centres.T).argmax(1).cpu()
                return torch.where(torch.from_numpy(target) >= 0, torch.from_numpy(target), near)
            space = Space.of(features, c.dims)
            found = semi_supervised_kmeans(
                space(features),
                torch.from_numpy(target),
                clusters,
                pool.generator(),
                restarts=c.restarts,
                iterations=c.iterations,
            )
            return found.labels.cpu()

        return predict_by_clusters(pool, embed, features, np.asarray(pool.once(labels).cpu()), base)

    def get_extra_state(self) -> dict[str, Any]:
        """Prototypes and their number change from epoch to epoch."""
        return {"clusters": self.clusters, **self.kept}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue with saved prototypes."""
        self.clusters = int(state["clusters"])
        self._keep(state)

    def reference_names(self) -> dict[str, str]:
        """Names in the published implementation."""
        return ContrastiveHead.reference_names("head")
