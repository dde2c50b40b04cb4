"""A sound method, and methods that are broken in one way each: one for every check of the conformance kit."""

from __future__ import annotations

import os
import sys
import weakref
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gcdbench.contracts import Batch, Losses, Method, Optim, Pool, Prediction, Progress, Stage, Task, Term
from gcdbench.toolbox.heads import CosineClassifier
from gcdbench.toolbox.losses import cross_entropy, negative_mean_entropy, self_distillation


@dataclass(frozen=True)
class SoundConfig:
    """Settings."""

    temperature: float = 0.1
    """Temperature of the classifier."""


class Sound(Method):
    """Breaks nothing."""

    Config: ClassVar[type] = SoundConfig

    def __init__(self, config: Any, task: Task) -> None:
        super().__init__(config, task)
        self.tail = task.backbone.tail()
        self.head = CosineClassifier(task.backbone.embed_dim, task.num_classes, task.generator, start="unit")

    def logits(self, tokens: Tensor) -> Tensor:
        return self.head(self.tail(tokens)[:, 0])

    def forward(self, batch: Batch, t: Progress) -> Losses:
        logits = self.logits(batch.tokens)
        temperature = self.config.temperature
        losses = Losses()
        losses.add("ce", cross_entropy(logits, batch.target.repeat(2), batch.labelled.repeat(2), temperature))
        losses.add("self", self_distillation(logits, temperature, temperature / 2).mean(), 0.5)
        losses.add("neg_entropy", negative_mean_entropy(logits, temperature))
        return losses

    def predict(self, pool: Pool) -> Prediction:
        return Prediction(pool.queries.features(self.logits).argmax(1).cpu().numpy())


class FailsConfig(Sound):
    """Settings that can be changed after the run id was computed."""

    @dataclass
    class Config:
        temperature: float = 0.1
        """Temperature of the classifier."""


class FailsBuilds(Sound):
    """A width that fits one backbone."""

    def __init__(self, config: Any, task: Task) -> None:
        super().__init__(config, task)
        self.head.weight = nn.Parameter(torch.zeros(task.num_classes, 768))
        self.head.weight.data += self.tail.norm.weight


class FailsLosses(Sound):
    """A loss that is not finite."""

    def forward(self, batch: Batch, t: Progress) -> Losses:
        losses = super().forward(batch, t)
        losses.add("log", (losses["ce"].value * 0).log())
        return losses


class FailsBatchUntouched(Sound):
    """Normalises the batch that it shares with others, in place."""

    def forward(self, batch: Batch, t: Progress) -> Losses:
        batch.tokens.div_(2.0)
        return super().forward(batch, t)


class FailsGradients(Sound):
    """A layer that nobody uses."""

    def __init__(self, config: Any, task: Task) -> None:
        super().__init__(config, task)
        self.forgotten = nn.Linear(3, 3)


class FailsOptimised(Sound):
    """Forgets the head."""

    def optimizers(self, stage: Stage) -> dict[str, Optim]:
        optim = super().optimizers(stage)["main"]
        for group in optim.optimizer.param_groups:
            group["params"] = [p for p in group["params"] if p is not self.head.weight]
        return {"main": optim}


class FailsEvaluationChangesNothing(Sound):
    """Each prediction makes the next losses larger, unseen by any checkpoint."""

    asked = 0

    def predict(self, pool: Pool) -> Prediction:
        self.asked += 1
        return super().predict(pool)

    def forward(self, batch: Batch, t: Progress) -> Losses:
        losses = super().forward(batch, t)
        losses.add("asked", losses["ce"].value, 0.1 * self.asked)
        return losses


class FailsNoLabels(Sound):
    """The mean over no row is not a number."""

    def forward(self, batch: Batch, t: Progress) -> Losses:
        losses = super().forward(batch, t)
        logits = self.logits(batch.tokens).chunk(2)[0][batch.labelled]
        losses["ce"] = Term(F.cross_entropy(logits / 0.1, batch.target[batch.labelled]))
        return losses


class FailsOnlyLabels(Sound):
    """The same on the other side."""

    def forward(self, batch: Batch, t: Progress) -> Losses:
        losses = super().forward(batch, t)
        hidden = self.logits(batch.tokens).chunk(2)[0][~batch.labelled]
        losses.add("hidden", -hidden.softmax(1).amax(1).mean())
        return losses


class FailsBf16(Sound):
    """Looks for a small difference where bf16 has none."""

    def forward(self, batch: Batch, t: Progress) -> Losses:
        losses = super().forward(batch, t)
        cls = F.normalize(self.tail(batch.tokens)[:, 0], dim=1)
        similar = (cls @ cls.T).diagonal()
        losses.add("gap", -torch.log(torch.full_like(similar, 1.001) - similar.detach()).mean(), 0.0)
        return losses


class FailsPrediction(Sound):
    """One class too many."""

    def predict(self, pool: Pool) -> Prediction:
        answer = super().predict(pool)
        return replace(answer, cluster=np.where(answer.cluster == 0, self.task.num_classes, answer.cluster))


class FailsPredictionRepeats(Sound):
    """Decides a few rows by chance."""

    def predict(self, pool: Pool) -> Prediction:
        answer = super().predict(pool)
        answer.cluster[:20] = np.random.default_rng().integers(self.task.num_classes, size=20)
        return answer


class FailsPredictionKeepsState(Sound):
    """Counts in a buffer how often it was asked."""

    def __init__(self, config: Any, task: Task) -> None:
        super().__init__(config, task)
        self.register_buffer("asked", torch.zeros(()))

    def predict(self, pool: Pool) -> Prediction:
        self.asked += 1
        return super().predict(pool)


class FailsRowOrder(Sound):
    """Says it is inductive, but looks at the mean of all rows that are asked about."""

    def predict(self, pool: Pool) -> Prediction:
        features = pool.queries.features(lambda tokens: self.tail(tokens)[:, 0])
        return Prediction(self.head(features - features.mean(0)).argmax(1).cpu().numpy())


class FailsUnseenRows(Sound):
    """Remembers answers by row number."""

    known: np.ndarray | None = None

    def on_epoch_start(self, pool: Pool, t: Progress) -> None:
        self.known = pool.features(self.logits).argmax(1).cpu().numpy()

    def predict(self, pool: Pool) -> Prediction:
        return super().predict(pool) if self.known is None else Prediction(self.known[pool.queries.index])

    def get_extra_state(self) -> Any:
        return None if self.known is None else torch.from_numpy(self.known)

    def set_extra_state(self, state: Any) -> None:
        self.known = None if state is None else state.numpy()


class FailsWrongK(Sound):
    """Expects as many novel classes as base classes."""

    def __init__(self, config: Any, task: Task) -> None:
        super().__init__(config, task)
        assert task.num_classes == 2 * task.num_base


class FailsDeterministic(Sound):
    """Noise from the system's own source."""

    def forward(self, batch: Batch, t: Progress) -> Losses:
        noise = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "big"))
        tokens = batch.tokens + 0.01 * torch.randn(batch.tokens.shape, generator=noise)
        return super().forward(replace(batch, tokens=tokens), t)


class FailsHiddenLabels(Sound):
    """Reads the truth from whoever called it."""

    def predict(self, pool: Pool) -> Prediction:
        answer, frame = super().predict(pool), sys._getframe()
        while frame is not None:
            ctx = frame.f_locals.get("ctx") or getattr(frame.f_locals.get("self"), "ctx", None)
            if hasattr(ctx, "data"):
                seen = pool.query_places is not None
                truth = ctx.data.split.target if seen else ctx.data.test_target()
                rows = ctx.data.order["train" if seen else "test"][pool.queries.index]
                return replace(answer, cluster=np.minimum(truth[rows], self.task.num_classes - 1))
            frame = frame.f_back
        return answer


class FailsResumes(Sound):
    """A running mean that no checkpoint holds."""

    def __init__(self, config: Any, task: Task) -> None:
        super().__init__(config, task)
        self.average = 0.0

    def forward(self, batch: Batch, t: Progress) -> Losses:
        losses = super().forward(batch, t)
        self.average = 0.5 * self.average + 0.5 * losses["ce"].value.item()
        losses.add("scaled", losses["ce"].value, 0.1 * self.average)
        return losses


class FailsLanes(Sound):
    """All instances share something: how many of them there are."""

    alive: ClassVar[Any] = weakref.WeakSet()

    def __init__(self, config: Any, task: Task) -> None:
        super().__init__(config, task)
        self.alive.add(self)

    def forward(self, batch: Batch, t: Progress) -> Losses:
        losses = super().forward(batch, t)
        losses.add("shared", losses["ce"].value, 0.1 * len(self.alive))
        return losses


class FailsRanks(Sound):
    """Looks at the tokens themselves, of which each rank has its own."""

    def forward(self, batch: Batch, t: Progress) -> Losses:
        losses = super().forward(batch, t)
        losses.add("tokens", losses["self"].value * batch.tokens.detach().std(0).mean())
        return losses


class FailsBeatsChance(Sound):
    """Puts everything into one class."""

    def predict(self, pool: Pool) -> Prediction:
        return Prediction(np.zeros(len(pool.queries), dtype=np.int64))
