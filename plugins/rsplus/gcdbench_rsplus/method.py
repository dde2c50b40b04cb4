"""RS+: a linear classifier over all classes, taught by labels, by pairs of like rows and by agreement of the views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from gcdbench import Batch, Losses, Method, Optim, Pool, Prediction, Progress, Stage, Task
from gcdbench.errors import UsageError
from gcdbench.toolbox.heads import start_as_linear
from gcdbench.toolbox.losses import cross_entropy, no_autocast, wide
from gcdbench.toolbox.optim import StepsPerEpoch, sgd_on
from gcdbench.toolbox.predicting import predict_by_logits
from gcdbench.toolbox.regularisers import RegulariserSlot, regularise
from gcdbench_rsplus.losses import alike, consistency, known_pairs, pair_loss, ramp_up


@dataclass(frozen=True)
class RSPlusConfig(RegulariserSlot):
    """Settings of RS+."""

    top: int = 5
    """Largest features of a row that are compared."""
    labelled_pairs: Literal["rank", "label"] = "rank"
    """How pairs of two labelled rows are decided: by their features, as in effect in the authors' code, or by label."""
    consistency_weight: float = 50.0
    """Weight of the agreement of views once it has risen."""
    consistency_terms: float = 2.0
    """How often the agreement is counted; the authors' code adds the same term twice."""
    ramp_epochs: int = 150
    """Epochs over which that weight rises."""
    milestones: tuple[float, ...] = (0.425, 0.85)
    """Shares of training after which the learning rate falls to a tenth (85 and 170 of 200 epochs)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top < 1:
            raise UsageError(f"method.top is {self.top}; it must be at least 1.")
        if min(self.consistency_weight, self.consistency_terms, self.ramp_epochs) < 0:
            raise UsageError("method.consistency_weight, consistency_terms and ramp_epochs must not be negative.")
        if not all(0 <= share <= 1 for share in self.milestones):
            raise UsageError("method.milestones are shares of training, from 0 to 1.")


class RSPlus(Method):
    """Ranking statistics (Han et al., ICLR 2020) over all classes, as GCD's authors adapted them."""

    Config: ClassVar[type] = RSPlusConfig
    recipes: ClassVar[tuple[str, ...]] = ("released", "intended")

    def __init__(self, config: RSPlusConfig, task: Task) -> None:
        super().__init__(config, task)
        self.tail = task.backbone.tail(norm=True)
        self.classifier = nn.Linear(task.backbone.embed_dim, task.num_classes)
        start_as_linear(self.classifier.weight, task.generator)
        start_as_linear(self.classifier.bias, task.generator, width=task.backbone.embed_dim)

    def forward(self, batch: Batch, t: Progress) -> Losses:
        """Cross entropy of labelled rows, the pairs of the whole batch, agreement of views."""
        c: RSPlusConfig = self.config
        cls = self.features(batch.tokens)
        logits = self.classify(cls)
        first, second = logits.chunk(2)
        labelled = batch.labelled
        pairs = alike(wide(cls.detach().chunk(2)[0]), c.top)
        if c.labelled_pairs == "label":
            pairs = known_pairs(pairs, batch.target, labelled)
        losses = Losses()
        losses.add("ce", cross_entropy(first, batch.target, labelled, 1.0))
        losses.add("pairs", pair_loss(first, second, pairs, labelled | ~labelled))
        weight = c.consistency_terms * ramp_up(c.consistency_weight, c.ramp_epochs, t.epoch)
        losses.add("consistency", consistency(first, second), weight)
        regularise(losses, c, logits)
        return losses

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        """SGD over one group, everything decayed; the rate falls in steps."""
        optim = sgd_on((p for _, p in self.trained_parameters()), self.task.train)
        return {"main": Optim(optim.optimizer, StepsPerEpoch(self.config.milestones))}

    def logits(self, tokens: Tensor) -> dict[str, Tensor]:
        """Logits of all classes."""
        return {"main": self.classify(self.features(tokens))}

    def classify(self, cls: Tensor) -> Tensor:
        """Logits in full precision: in half of it, many of a large number of classes would tie."""
        with no_autocast(cls):
            found: Tensor = self.classifier(wide(cls))
        return found

    def features(self, tokens: Tensor) -> Tensor:
        """CLS, whose largest numbers are compared."""
        found: Tensor = self.tail(tokens)[:, 0]
        return found

    def predict(self, pool: Pool) -> Prediction:
        """Argmax over all classes."""
        return predict_by_logits(pool, self.logits, self.task.num_base, 1.0)
