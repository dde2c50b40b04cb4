"""CRNCD: supervised training on base classes, then discovery that keeps how that model relates rows to base classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from gcdbench_uno.heads import Prototypes
from torch import Tensor

from gcdbench import Batch, Losses, Method, Optim, Pool, Prediction, Progress, Stage, Task
from gcdbench.toolbox.losses import cross_entropy, no_autocast, wide
from gcdbench.toolbox.predicting import predict_by_logits
from gcdbench_crncd.config import CRNCDConfig
from gcdbench_crncd.losses import class_relation
from gcdbench_crncd.objectives import SimGCDObjective, UNOObjective, adamw

PRETRAIN, DISCOVER = "pretrain", "discover"


class CRNCD(Method):
    """Class-relation knowledge distillation (Gu et al., ICCV 2023), adapted to GCD."""

    Config: ClassVar[type] = CRNCDConfig
    recipes: ClassVar[tuple[str, ...]] = ("adapted", "uno")
    discovering: Tensor
    old_base: Tensor

    def __init__(self, config: CRNCDConfig, task: Task) -> None:
        super().__init__(config, task)
        kind = SimGCDObjective if config.objective == "simgcd" else UNOObjective
        self.objective: SimGCDObjective | UNOObjective = kind(config, task)
        # The model of the base classes: trained in the first stage (its tail is the objective's own), then frozen.
        self.base = Prototypes(task.backbone.embed_dim, task.num_base, task.generator)
        self.old_tail = task.backbone.tail(norm=True).requires_grad_(False)
        self.register_buffer("old_base", torch.zeros_like(self.base.weight))
        self.register_buffer("discovering", torch.zeros((), dtype=torch.bool))

    def stages(self) -> Sequence[Stage]:
        """Supervised training on labelled rows, then discovery."""
        return (Stage(PRETRAIN, self.config.pretrain_epochs), Stage(DISCOVER, self.task.train.epochs))

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """AdamW in the first stage, what the objective takes in the second."""
        c: CRNCDConfig = self.config
        if stage.name == DISCOVER:
            return {"main": self.objective.optimizer()}
        trained = [p for p in (*self.objective.tail.parameters(), *self.base.parameters()) if p.requires_grad]
        return {"main": adamw(trained, c.pretrain_lr, c.pretrain_warmup, c, self.task.train)}

    def on_epoch_start(self, pool: Pool, t: Progress) -> None:
        """Discovery begins with a frozen copy of the first stage's model."""
        self._normalise()
        if t.stage == DISCOVER and t.epoch == 0:
            self._begin_discovery()

    @torch.no_grad()
    def _begin_discovery(self) -> None:
        tail, old = self.objective.tail, self.old_tail
        trained = {name: value.clone() for name, value in tail.state_dict().items()}
        if not self.config.start_from_stage1:  # the frozen copy has been the backbone's own until now
            tail.load_state_dict(old.state_dict())
        old.load_state_dict(trained)
        self.old_base.copy_(self.base.weight)
        if self.config.start_from_stage1:
            self.objective.begin(self.base.weight)
        self.discovering.fill_(True)

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """Cross entropy of labelled rows; in discovery the objective's terms and the distillation."""
        c: CRNCDConfig = self.config
        if t.stage == PRETRAIN:
            cosines = self.base(self.features(batch.tokens))
            known = Losses()
            known.add("ce", cross_entropy(cosines, batch.target.repeat(2), batch.labelled.repeat(2), c.student_temp))
            return known
        losses: Losses
        losses, cosines = self.objective(batch, t)
        with torch.no_grad():
            self.old_tail.eval()
            cls = self.old_tail(batch.tokens)[:, 0]
            with no_autocast(cls):
                old = torch.stack(F.linear(F.normalize(wide(cls), dim=1), self.old_base).chunk(2))
        kd = class_relation(cosines, old, ~batch.labelled, c.student_temp, c.kd_temp, c.detach_weight)
        losses.add("relation", kd.mean(), c.kd_weight)
        return losses

    def on_step_end(self, batch: Batch, t: Progress) -> None:
        """Prototypes have length one before every step."""
        self._normalise()

    def _normalise(self) -> None:
        self.base.normalise()
        self.objective.normalise()

    def logits(self, tokens: Tensor) -> dict[str, Tensor]:
        """Cosines with all classes; as long as only base classes were learnt, novel ones are out of reach."""
        cls = self.features(tokens)
        found = self.objective.logits(cls)
        known = F.pad(self.base(cls), (0, found.shape[1] - self.task.num_base), value=-1.0)
        return {"main": torch.where(self.discovering, found, known.to(found.dtype))}

    def features(self, tokens: Tensor) -> Tensor:
        """CLS."""
        found: Tensor = self.objective.tail(tokens)[:, 0]
        return found

    def predict(self, pool: Pool) -> Prediction:
        """Argmax over all classes."""
        return predict_by_logits(pool, self.logits, self.task.num_base, self.config.student_temp)
