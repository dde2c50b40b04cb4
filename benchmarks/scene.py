"""What the benchmarks run on: real photographs as 500-pixel JPEGs, and runs of real methods at ViT-B/16 geometry."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.reference import ReferenceBackbone
from gcdbench.analysis.experiment_file import load_experiment
from gcdbench.config.resolve import read_toml
from gcdbench.contracts import Batch, Progress
from gcdbench.data.images import NumberedImages
from gcdbench.data.stream import stream
from gcdbench.data.views import ViewPlan
from gcdbench.prepare.environment import RunEnvironment, StoreOptions
from gcdbench.prepare.request import RunRequest, resolve_request
from gcdbench.prepare.run_context import RunContext, build_method
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.runs.execute import open_runs
from gcdbench.system.parallel.communicator import ALONE, Communicator
from gcdbench.training.batches import batches, first_plans
from gcdbench.training.method_trainer import MethodTrainer

GEOMETRY = "vit_base_patch16_224"
CLASSES = 8
K = 200
"""Classes the methods know of, as on CUB."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    images: int = 32
    """Images at ViT-B/16 geometry."""
    batch: int = 16
    rounds: int = 2
    photographs: int = 192
    """JPEGs for the image store."""
    rows: int = 20_000
    """Rows of k-means."""


QUICK = Sizes(images=8, batch=4, rounds=1, photographs=96, rows=4_000)


@dataclass(frozen=True)
class Subjects:
    """Which methods are measured: `[bench]` of `subjects.toml`."""

    methods: tuple[str, str]
    experiment: str
    communities: str

    @staticmethod
    def read() -> Subjects:
        """From `subjects.toml`."""
        head = read_toml(Path(__file__).with_name("subjects.toml"))["bench"]
        return Subjects(tuple(head["methods"]), head["experiment"], head["communities"])


def write_photographs(folder: Path, count: int) -> None:
    """Cut JPEGs of 500 x 375 pixels, in class folders, out of the two photographs that scikit-learn ships."""
    from sklearn.datasets import load_sample_images

    random = np.random.default_rng(0)
    photographs = [Image.fromarray(p) for p in load_sample_images().images]
    for number in range(count):
        photograph = photographs[number % 2]
        left, top = (int(random.integers(0, free + 1)) for free in (photograph.size[0] - 500, photograph.size[1] - 375))
        place = folder / f"class {number % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        photograph.crop((left, top, left + 500, top + 375)).save(place / f"{number:04}.jpg", quality=92)


class Scene:
    """A folder of photographs and the runs that look at it."""

    def __init__(self, folder: Path, sizes: Sizes, subjects: Subjects, ranks: Communicator = ALONE) -> None:
        self.sizes = sizes
        self.subjects = subjects
        self.folder = folder
        if not (folder / "few").exists():  # else another process has written them
            write_photographs(folder / "few", sizes.images)
        self.environment = RunEnvironment(
            folder / "runs", folder / "few", "cpu", store_options=StoreOptions(folder / "cache"), ranks=ranks
        )
        self.shared = SharedResources(self.environment)

    def run(self, method: str, more: Mapping[str, Any] | None = None) -> RunContext:
        """A run of one method; runs with the same views share trunk and images."""
        settings = {
            "backbone.name": GEOMETRY,
            "backbone.weights": "random",
            "train.batch_size": self.sizes.batch,
            "data.k": K,
            **(more or {}),
        }
        request = RunRequest(method, "folder", seeds=(0,), settings=settings)
        (ctx,) = open_runs(resolve_request(request), self.shared)
        return ctx

    def both(self) -> list[RunContext]:
        """The two methods that are compared."""
        return [self.run(method) for method in self.subjects.methods]

    def rows(self) -> list[RunContext]:
        """The rows of the experiment that stands for an ablation."""
        rows = load_experiment(self.subjects.experiment).rows
        return [self.run(row.method, row.settings_on("folder")) for row in rows]


class Training:
    """Lanes of some runs, and the first steps of their common stream; in our shape or in the reference's."""

    def __init__(self, contexts: Sequence[RunContext], reference: bool = False) -> None:
        self.ctx = contexts[0]
        self.reference = reference
        self.lanes: list[MethodTrainer] = []
        for ctx in contexts:
            whole: Any = ReferenceBackbone(ctx.backbone)
            seen = dataclasses.replace(ctx, ready=dataclasses.replace(ctx.ready, backbone=whole)) if reference else ctx
            method = build_method(seen)
            trainer = MethodTrainer(ctx.config.method, method.train(), ctx.compute, ctx.ranks)
            self.stage = method.stages()[0]
            trainer.start_stage(self.stage)
            trainer.start_epoch(self.at(0))
            self.lanes.append(trainer)

    def at(self, step: int) -> Progress:
        """Where a step stands."""
        random = torch.Generator().manual_seed(step)
        return Progress(self.stage.name, 0, self.stage.epochs, step, self.ctx.sampler.steps, random)

    def plans(self, count: int) -> list[ViewPlan]:
        """The views of the first steps."""
        return first_plans(self.ctx, self.stage, count)

    def step(self, batch: Batch) -> None:
        """One step of every lane on a batch that is there."""
        for trainer in self.lanes:
            trainer.step(batch, self.at(0))

    def ours(self, count: int = 1) -> None:
        """Whole steps: views, one trunk pass, every lane."""
        for _, batch in batches(self.ctx, self.plans(count), self.ctx.ranks):
            self.step(batch)

    def theirs(self, pixels: Sequence[Batch]) -> None:
        """Whole steps in the reference shape, run after run; the pixels are there already."""
        for trainer in self.lanes:
            for batch in pixels:
                trainer.step(batch, self.at(0))

    def pixels(self, count: int = 1) -> list[Batch]:
        """Batches of normalised pixels, for the reference."""
        return list(pixel_batches(self.ctx, self.plans(count)))


def pixel_batches(ctx: RunContext, plans: Sequence[ViewPlan]) -> Iterator[Batch]:
    """What a public script's loader would bring."""
    source = ctx.source
    split, images = ctx.data.numbered, NumberedImages(source.images["train"], ctx.data.order["train"])
    labelled, visible = torch.from_numpy(split.is_labelled), torch.from_numpy(split.visible)
    for plan_, crops in stream(images, plans, ctx.config.views.crop, 0, ctx.compute.device):
        yield Batch(source.normalise(crops), visible[plan_.rows], labelled[plan_.rows], plan_.rows, plan_.views)
