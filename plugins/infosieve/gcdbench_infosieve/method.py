"""InfoSieve: contrastive training of features and of short codes of them, with clusters as classes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench import Batch, Losses, Method, Optim, Pool, Prediction, Progress, Stage, Task, Traits
from gcdbench.toolbox.heads import ContrastiveHead
from gcdbench.toolbox.losses import no_autocast, wide
from gcdbench.toolbox.optim import sgd_on
from gcdbench.toolbox.predicting import cls_embedding, predict_by_clusters, without_gaps
from gcdbench_infosieve import losses as terms
from gcdbench_infosieve.code_head import Age, CodeHead
from gcdbench_infosieve.config import InfoSieveConfig
from gcdbench_infosieve.kmeans import Rows, balanced_kmeans


class InfoSieve(Method):
    """InfoSieve (Rastegar, Doughty, Snoek; NeurIPS 2023)."""

    Config: ClassVar[type] = InfoSieveConfig
    traits: ClassVar[Traits] = Traits(inductive=False, train_from=-2, sampler="mostly-labelled")
    recipes: ClassVar[tuple[str, ...]] = ("released", "intended")

    def __init__(self, config: InfoSieveConfig, task: Task) -> None:
        super().__init__(config, task)
        self.tail = task.backbone.tail(norm=True)
        widths = (config.head_hidden, config.head_narrow, config.head_out)
        self.projection = ContrastiveHead(task.backbone.embed_dim, *widths, task.generator)
        self.head = CodeHead(
            config.head_out, config.bits, task.num_base, config.code_hidden, config.code_layers, task.generator
        )
        self.pseudo: Tensor | None = None
        """Cluster of every training row, by its number; None before the first epoch."""

    def features(self, tokens: Tensor) -> Tensor:
        """CLS: what is clustered, at length one."""
        found: Tensor = self.tail(tokens)[:, 0]
        return found

    def on_epoch_start(self, pool: Pool, t: Progress) -> None:
        """Cluster all rows as one random view shows them; the clusters are classes for this epoch."""
        features = pool.features(cls_embedding(self.tail), views="train")
        found = pool.once(lambda: self._cluster(features, pool)).cpu().numpy()
        pseudo = np.full(int(pool.index.max()) + 1, -1, dtype=np.int64)
        pseudo[pool.index] = found
        self.pseudo = torch.from_numpy(pseudo).to(features.device)

    def _cluster(self, features: Tensor, pool: Pool) -> Tensor:
        c: InfoSieveConfig = self.config
        clusters = self.task.num_classes
        size = math.ceil(len(features) / clusters) if c.balanced else None
        target, classes = without_gaps(pool.target, self.task.num_base)
        rows = Rows(features, target, clusters, size)
        found = balanced_kmeans(rows, pool.generator(), c.restarts, c.iterations, c.clean_balance).labels
        novel = np.arange(self.task.num_base, self.task.num_base + clusters - len(classes))
        return torch.from_numpy(np.concatenate([classes, novel])[found])

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """The contrastive losses of projections and codes, and what codes shall be like."""
        c: InfoSieveConfig = self.config
        projection = self.projection(self.tail(batch.tokens)[:, 0])
        with no_autocast(projection):
            z = F.normalize(wide(projection), dim=1)
            codes = self.head(z, Age(t.epoch, t.epochs))
        target, labelled = batch.target.repeat(2), batch.labelled.repeat(2)
        everyone = labelled | ~labelled
        pseudo = target if self.pseudo is None else torch.where(labelled, target, self.pseudo[batch.index].repeat(2))
        losses = Losses()
        unsup, sup = 1 - c.sup_weight, c.sup_weight / 2
        plain = terms.distances(z)
        losses.add("nce", terms.smoothed_info_nce(plain, c.nce_temp, c.smoothing), unsup)
        losses.add("supcon", terms.distance_contrastive(plain, target, labelled, c.supcon_temp), sup)
        losses.add("pseudo", terms.distance_contrastive(plain, pseudo, everyone, c.supcon_temp), sup)
        raw = terms.normalised_distances(F.normalize(codes.raw, dim=1), everyone, c.row_sums)
        losses.add("code_nce", terms.smoothed_info_nce(raw, c.nce_temp, c.smoothing), unsup)
        known = terms.normalised_distances(codes.code, labelled, c.row_sums)
        losses.add("code_supcon", terms.distance_contrastive(known, target, labelled, c.supcon_temp), sup)
        whole = terms.normalised_distances(codes.code, everyone, c.row_sums)
        losses.add("code_pseudo", terms.distance_contrastive(whole, pseudo, everyone, c.supcon_temp), sup)
        losses.add("code_condition", terms.code_condition(codes.raw), c.code_condition_weight)
        losses.add("mask_condition", terms.mask_condition(codes.mask), c.mask_condition_weight)
        losses.add("category", terms.category_loss(codes.category, target, labelled), c.category_weight)
        losses.add("length", terms.code_length(codes.mask, c.length_mean), c.length_weight)
        return losses

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """SGD over one group: everything is decayed, biases too."""
        return {"main": sgd_on((p for _, p in self.trained_parameters()), self.task.train)}

    def predict(self, pool: Pool) -> Prediction:
        """The same clustering of all rows, as the test view shows them."""
        embed = cls_embedding(self.tail)
        features = pool.features(embed)
        labels = pool.once(lambda: self._cluster(features, pool)).cpu().numpy()
        return predict_by_clusters(pool, embed, features, labels, self.task.num_base)

    def get_extra_state(self) -> dict[str, Any]:
        """The clusters: there are as many numbers as training rows."""
        return {"pseudo": self.pseudo}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue with saved clusters."""
        pseudo = state["pseudo"]
        self.pseudo = None if pseudo is None else pseudo.to(self.projection.last.weight.device)

    def reference_names(self) -> dict[str, str]:
        """Names in the published implementation."""
        layers = {
            f"projection.mlp.{i}.{kind}": f"projection.mlp.{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias")
        }
        return {**layers, "projection.last_layer.weight_v": "projection.last.weight"}
