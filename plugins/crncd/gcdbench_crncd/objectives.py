"""What discovers classes in the second stage: SimGCD's terms, or UNO's. Both start from the first stage's model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from gcdbench_simgcd import SimGCD
from gcdbench_uno.heads import ClusterHead, Prototypes
from gcdbench_uno.losses import swapped_prediction
from torch import Tensor, nn

from gcdbench import Batch, Losses, Optim, Progress, Task, TrainConfig
from gcdbench.toolbox.optim import WarmupCosine, default_optim, fuses
from gcdbench.toolbox.regularisers import regularise
from gcdbench_crncd.config import CRNCDConfig


def adamw(parameters: Iterable[nn.Parameter], lr: float, warmup: int, config: CRNCDConfig, train: TrainConfig) -> Optim:
    """AdamW as in the authors' scripts: everything is decayed, the rate warms up and falls along a cosine."""
    listed = list(parameters)
    optimizer = torch.optim.AdamW(listed, lr=lr, weight_decay=config.adam_decay, fused=fuses(listed, train))
    return Optim(optimizer, WarmupCosine(warmup, lr * config.adam_floor))


class SimGCDObjective(nn.Module):
    """All of SimGCD; its first prototypes are those of the base classes."""

    def __init__(self, config: CRNCDConfig, task: Task) -> None:
        super().__init__()
        self.task = task
        self.simgcd = SimGCD(config, task)

    @property
    def tail(self) -> nn.Module:
        """SimGCD's."""
        return self.simgcd.tail

    def begin(self, prototypes: Tensor) -> None:
        """Take over the base prototypes of the first stage, as long as the others are at their start: only directions
        count, but a longer prototype turns more slowly."""
        weight = self.simgcd.classifier.weight
        weight[: len(prototypes)] = prototypes * weight[len(prototypes) :].norm(dim=1).mean().nan_to_num(1.0)

    def forward(self, batch: Batch, t: Progress) -> tuple[Losses, Tensor]:
        """The terms, and (views, 1, rows, classes) cosines."""
        losses, logits = self.simgcd.terms(batch, t)
        return losses, torch.stack(logits.chunk(2))[:, None]

    def optimizer(self) -> Optim:
        """SimGCD's own."""
        return default_optim(self.simgcd, self.task.train)

    def logits(self, cls: Tensor) -> Tensor:
        """Cosines with all classes."""
        found: Tensor = self.simgcd.classifier(cls)
        return found

    def normalise(self) -> None:
        """Prototypes are normalised in the forward pass."""


class UNOObjective(nn.Module):
    """UNO's swapped predictions over all classes: base prototypes on CLS, several heads for the novel classes."""

    def __init__(self, config: CRNCDConfig, task: Task) -> None:
        super().__init__()
        self.config, self.train_config = config, task.train
        dim, novel = task.backbone.embed_dim, task.num_classes - task.num_base
        self.tail = task.backbone.tail(norm=True)
        self.base = Prototypes(dim, task.num_base, task.generator)
        widths = (config.projector_hidden, config.projector_out)
        # Without novel classes there is nothing to discover, and the base prototypes are all there is.
        heads = (ClusterHead(dim, *widths, novel, task.generator) for _ in range(config.heads if novel else 0))
        self.heads = nn.ModuleList(heads)

    def begin(self, prototypes: Tensor) -> None:
        """Take over the base prototypes of the first stage."""
        self.base.weight.copy_(prototypes)

    def forward(self, batch: Batch, t: Progress) -> tuple[Losses, Tensor]:
        """The terms, and (views, heads, rows, classes) cosines."""
        c = self.config
        cls = self.tail(batch.tokens)[:, 0]
        known = self.base(cls)
        # Each view goes through the heads on its own, since batch norm looks at all rows it is given.
        novel = [torch.cat([head(view) for view in cls.chunk(2)]) for head in self.heads]
        each = [torch.cat([known, found], dim=1) for found in novel] or [known]
        swapped = [
            swapped_prediction(
                logits, batch.target, batch.labelled, c.student_temp, c.sinkhorn_epsilon, c.sinkhorn_iterations
            )
            for logits in each
        ]
        losses = Losses()
        losses.add("cluster", torch.stack(swapped).mean())
        regularise(losses, c, *each)
        return losses, torch.stack([torch.stack(logits.chunk(2)) for logits in each], dim=1)

    def optimizer(self) -> Optim:
        """AdamW with a warm-up."""
        train: TrainConfig = self.train_config
        trained = (p for p in self.parameters() if p.requires_grad)
        return adamw(trained, train.lr, self.config.warmup_epochs, self.config, train)

    def logits(self, cls: Tensor) -> Tensor:
        """Cosines of the first head."""
        known = self.base(cls)
        return torch.cat([known, self.heads[0](cls)], dim=1) if len(self.heads) else known

    def normalise(self) -> None:
        """Prototypes have length one before every step."""
        for module in self.modules():
            if isinstance(module, Prototypes):
                module.normalise()
