"""muGCD: contrastive training, then a classifier that learns from a slowly moving average of itself."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from gcdbench import Batch, Losses, Method, Optim, Pool, Prediction, Progress, Stage, Task
from gcdbench.errors import UsageError
from gcdbench.toolbox.heads import ContrastiveHead, CosineClassifier
from gcdbench.toolbox.losses import cross_entropy, info_nce, negative_mean_entropy, supervised_contrastive
from gcdbench.toolbox.optim import decay_groups, sgd, sgd_on
from gcdbench.toolbox.predicting import predict_by_logits
from gcdbench.toolbox.regularisers import RegulariserSlot, regularise
from gcdbench.toolbox.schedules import warm_down
from gcdbench_mugcd.losses import crossed, momentum, taught

REPRESENT, DISCOVER = "represent", "discover"


@dataclass(frozen=True)
class MuGCDConfig(RegulariserSlot):
    """Settings of muGCD."""

    represent_epochs: int = 200
    """Epochs of contrastive training before discovery, which has `train.epochs`."""
    sup_weight: float = 0.35
    """Balance between supervised terms (this) and unsupervised ones (one minus this), in both stages."""
    entropy_weight: float = 1.0
    """Weight of mean-entropy maximisation."""
    student_temp: float = 0.1
    """Temperature of the student's distribution, also of the supervised cross entropy."""
    teacher_temp_start: float = 0.07
    """Temperature of the teacher's distribution in the first epoch of discovery."""
    teacher_temp_end: float = 0.04
    """Temperature of the teacher's distribution after the warm-up."""
    teacher_temp_epochs: int = 30
    """Epochs over which it falls linearly."""
    momentum_base: float = 0.7
    """One minus how much more of the student the teacher takes in the first epoch than in the last."""
    momentum_end: float = 0.999
    """Share of itself that the teacher keeps in the last epoch."""
    student_views: Literal["both", "second"] = "both"
    """`both`: the teacher's answer for each view teaches the student's for the other. `second`: the teacher sees the
    first (weak) view, the student learns on the second (strong) one."""
    answer: Literal["teacher", "student"] = "teacher"
    """Whose classifier predicts."""
    info_nce_temp: float = 1.0
    """Temperature of the self-supervised contrastive loss of the first stage."""
    supcon_temp: float = 0.07
    """Temperature of the supervised contrastive loss of the first stage."""
    head_hidden: int = 2048
    """Width of the contrastive head's hidden layers."""
    head_narrow: int = 256
    """Width of the contrastive head's narrow layer."""
    head_out: int = 65536
    """Directions of the contrastive head's last layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("student_temp", "teacher_temp_start", "teacher_temp_end", "info_nce_temp", "supcon_temp"):
            if getattr(self, name) <= 0:
                raise UsageError(f"method.{name} is {getattr(self, name)}; a temperature must be positive.")
        for name in ("sup_weight", "momentum_base", "momentum_end"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must lie between 0 and 1.")
        if self.momentum_end < 1 - self.momentum_base:
            raise UsageError("method.momentum_end is smaller than 1 - momentum_base: the first momentum is negative.")
        if min(self.head_hidden, self.head_narrow, self.head_out) < 1:
            raise UsageError("The widths method.head_hidden, head_narrow and head_out must be at least 1.")
        if self.represent_epochs < 0:
            raise UsageError(f"method.represent_epochs is {self.represent_epochs}; it must not be negative.")


class MuGCD(Method):
    """muGCD (Vaze, Vedaldi, Zisserman: No Representation Rules Them All; NeurIPS 2023)."""

    Config: ClassVar[type] = MuGCDConfig
    recipes: ClassVar[tuple[str, ...]] = ("adapted", "strong-views")

    def __init__(self, config: MuGCDConfig, task: Task) -> None:
        super().__init__(config, task)
        dim = task.backbone.embed_dim
        self.tail = task.backbone.tail(norm=True)
        widths = (config.head_hidden, config.head_narrow, config.head_out)
        self.head = ContrastiveHead(dim, *widths, task.generator)
        self.classifier = CosineClassifier(dim, task.num_classes, task.generator)
        self.teacher_tail = task.backbone.tail(norm=True).requires_grad_(False)
        self.teacher_classifier = copy.deepcopy(self.classifier).requires_grad_(False)
        self._follow(0.0)

    def _followed(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Pairs of the teacher's and the student's parameters."""
        pairs = ((self.teacher_tail, self.tail), (self.teacher_classifier, self.classifier))
        return [pair for old, new in pairs for pair in zip(old.parameters(), new.parameters(), strict=True)]

    @torch.no_grad()
    def _follow(self, keep: float) -> None:
        for old, new in self._followed():
            old.mul_(keep).add_(new, alpha=1 - keep)

    def stages(self) -> Sequence[Stage]:
        """Contrastive training, then discovery."""
        return (Stage(REPRESENT, self.config.represent_epochs), Stage(DISCOVER, self.task.train.epochs))

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """SGD over the tail and the head that is trained in the stage; the first decays everything, as GCD does."""
        head: nn.Module = self.head if stage.name == REPRESENT else self.classifier
        named = [*self.tail.named_parameters(prefix="tail"), *head.named_parameters(prefix="head")]
        trained = [(name, p) for name, p in named if p.requires_grad]
        if stage.name == REPRESENT:
            return {"main": sgd_on((p for _, p in trained), self.task.train)}
        return {"main": sgd(decay_groups(trained, self.task.train), self.task.train)}

    def on_epoch_start(self, pool: Pool, t: Progress) -> None:
        """The teacher begins discovery as the student."""
        if t.stage == DISCOVER and t.epoch == 0:
            self._follow(0.0)

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """Contrastive terms in the first stage; then cross entropy, the teacher's answers and the mean entropy."""
        return self._represent(batch) if t.stage == REPRESENT else self._discover(batch, t)

    def _represent(self, batch: Batch) -> Losses:
        c: MuGCDConfig = self.config
        projection = self.head(self.tail(batch.tokens)[:, 0])
        losses = Losses()
        losses.add("info_nce", info_nce(projection, c.info_nce_temp), 1 - c.sup_weight)
        supcon = supervised_contrastive(projection, batch.target, batch.labelled, c.supcon_temp)
        losses.add("supcon", supcon, c.sup_weight)
        return losses

    def _discover(self, batch: Batch, t: Progress) -> Losses:
        c: MuGCDConfig = self.config
        weak, strong = batch.tokens.chunk(2)
        both = c.student_views == "both"
        student = self.classifier(self.tail(batch.tokens if both else strong)[:, 0])
        with torch.no_grad():
            teacher = self.teacher_classifier(self.teacher_tail(batch.tokens if both else weak)[:, 0])
        teacher_temp = warm_down(c.teacher_temp_start, c.teacher_temp_end, c.teacher_temp_epochs, t.epoch)
        target, labelled = (x.repeat(2 if both else 1) for x in (batch.target, batch.labelled))
        unsup = 1 - c.sup_weight
        losses = Losses()
        losses.add("ce", cross_entropy(student, target, labelled, c.student_temp), c.sup_weight)
        losses.add("taught", (crossed if both else taught)(student, teacher, c.student_temp, teacher_temp), unsup)
        losses.add("neg_entropy", negative_mean_entropy(student, c.student_temp), unsup * c.entropy_weight)
        regularise(losses, c, student)
        return losses

    def on_step_end(self, batch: Batch, t: Progress) -> None:
        """The teacher follows."""
        c: MuGCDConfig = self.config
        if t.stage == DISCOVER:
            self._follow(momentum(t.epoch, t.epochs, c.momentum_base, c.momentum_end))

    def logits(self, tokens: Tensor) -> Mapping[str, Tensor]:
        """Cosines of whoever answers."""
        if self.config.answer == "student":
            return {"main": self.classifier(self.tail(tokens)[:, 0])}
        return {"main": self.teacher_classifier(self.teacher_tail(tokens)[:, 0])}

    def features(self, tokens: Tensor) -> Tensor:
        """CLS of whoever answers."""
        tail = self.tail if self.config.answer == "student" else self.teacher_tail
        found: Tensor = tail(tokens)[:, 0]
        return found

    def predict(self, pool: Pool) -> Prediction:
        """Argmax over all classes."""
        return predict_by_logits(pool, self.logits, self.task.num_base, self.config.student_temp)
