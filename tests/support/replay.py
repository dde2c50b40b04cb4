"""Training steps of a method on a recorded trajectory that clusters its pool between epochs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gcdbench.backbone.timm_import import import_timm
from gcdbench.backbone.vit import SplitViT
from gcdbench.config.sections import TrainConfig
from gcdbench.contracts import Batch, Losses, Method, Progress, Task
from gcdbench.system.device import Compute
from gcdbench.training.method_trainer import MethodTrainer
from tests.support.recorded import Arrays, close, recorded, tensor

import_timm()
from timm.models.vision_transformer import VisionTransformer  # noqa: E402


class RecordedPool:
    """The recorded training rows, under the test view or as one recorded view shows them."""

    def __init__(self, tokens: dict[str, torch.Tensor], target: np.ndarray) -> None:
        self.tokens, self.target = tokens, target
        self.index, self.labelled = np.arange(len(target)), target >= 0

    @torch.no_grad()
    def features(self, embed: Callable[[torch.Tensor], torch.Tensor], views: str = "test") -> torch.Tensor:
        return embed(self.tokens[views])

    def once(self, action: Callable[[], Any]) -> Any:
        return action()

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(0)


@dataclass
class Step:
    """One replayed training step."""

    number: int
    losses: Losses
    rates: list[float]


class Replay:
    """A method with the recorded initial weights, and the recorded batches."""

    def __init__(self, test_file: str, name: str, train_from: int, pool_images: str = "images.pool_x16") -> None:
        self.arrays: Arrays = recorded(test_file, name)
        g = self.arrays
        self.settings = json.loads(str(g["config"]))
        vit = VisionTransformer(**self.settings["vit"])
        self.weights = {n.removeprefix("init."): tensor(v) for n, v in g.items() if n.startswith("init.")}
        own = {n.removeprefix("backbone."): v for n, v in self.weights.items() if n.startswith("backbone.")}
        vit.load_state_dict(own)
        self.split = SplitViT(vit, train_from)
        self.views = [tensor(g[f"images.view{number}_x16"]).float() / 16 for number in (1, 2)]
        self.target = np.where(g["labelled"], g["labels"], -1)
        shown = self.split.trunk(tensor(g[pool_images]).float() / 16)
        self.pool = RecordedPool({"test": shown, "train": shown}, self.target)

    def task(self) -> Task:
        s = self.settings
        train = TrainConfig(
            epochs=s["epochs"],
            batch_size=s["batch"],
            lr=s["lr"],
            weight_decay=s["weight_decay"],
            momentum=s["momentum"],
            lr_floor=s["lr_floor"],
        )
        steps = len(self.arrays["rows"][0])
        return Task(s["base_classes"], s["classes"], self.split, train, steps, torch.Generator().manual_seed(0))

    def own_name(self, method: Method, recorded_name: str) -> str | None:
        """A recorded tensor's name in the method's state; None for what it does not keep (the length of directions)."""
        if recorded_name.endswith("weight_g"):
            return None
        if recorded_name.startswith("backbone.blocks."):
            block, _, rest = recorded_name.removeprefix("backbone.blocks.").partition(".")
            return f"tail.blocks.{int(block) - self.split.start}.{rest}"
        return method.reference_names().get(recorded_name, recorded_name)

    def load(self, method: Method) -> None:
        """Recorded weights of everything that is not the backbone."""
        state = method.state_dict()
        for name, value in self.weights.items():
            own = None if name.startswith("backbone") else self.own_name(method, name)
            if own is not None:
                with torch.no_grad():
                    state[own].copy_(value)

    def steps(self, method: Method, before_epoch: Callable[[int], None]) -> Iterator[Step]:
        """Train as recorded; ``before_epoch`` stands for clustering, whose result is recorded too."""
        (stage,) = method.stages()
        trainer = MethodTrainer("recorded", method, Compute(torch.device("cpu"), "fp32"))
        trainer.start_stage(stage)
        seen: list[Losses] = []
        method.register_forward_hook(lambda module, inputs, losses: seen.append(losses))
        labelled = torch.from_numpy(self.arrays["labelled"])
        for epoch, batches in enumerate(self.arrays["rows"]):
            trainer.start_epoch(Progress(stage.name, epoch, stage.epochs, 0, len(batches)))
            before_epoch(epoch)
            method.train()
            for step, rows in enumerate(batches):
                where = torch.from_numpy(rows)
                tokens = self.split.trunk(torch.cat([view[where] for view in self.views]))
                batch = Batch(tokens, torch.from_numpy(self.target)[where], labelled[where], where)
                trainer.step(batch, Progress(stage.name, epoch, stage.epochs, step, len(batches)))
                rates = [group["lr"] for group in trainer.optims["main"].optimizer.param_groups]
                yield Step(epoch * len(batches) + step, seen.pop(), rates)
        method.eval()

    def compare_final(self, method: Method, atol: float = 1e-4) -> int:
        """Compare all recorded final weights; how many there were."""
        names = [n.removeprefix("final.") for n in self.arrays if n.startswith("final.")]
        state, compared = method.state_dict(), 0
        for name in names:
            own = self.own_name(method, name)
            if own in state:
                close(state[own], self.arrays[f"final.{name}"], rtol=1e-4, atol=atol)
                compared += 1
        return compared
