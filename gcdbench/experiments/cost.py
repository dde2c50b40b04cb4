"""What a sweep costs before anything is run: images, operations, GPU hours, disk and network, from counted operations.

Nothing is needed for it but the plugins: no data, no weights, no GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from gcdbench.analysis.experiment_file import Experiment
from gcdbench.backbone.catalogue import short_name
from gcdbench.config.resolve import run_id
from gcdbench.errors import GcdbenchError
from gcdbench.evaluation.selection import selection_rule
from gcdbench.experiments.operation_counts import RunCount, count_run
from gcdbench.experiments.study_runs import Asked, installed_rows, prepare_studies
from gcdbench.prepare.environment import RunEnvironment

WAYS = ("alone", "lanes", "eval_store", "train_views")
"""Ways to make the runs, each with the savings of those before it; the last one trains on stored views."""


@dataclass(frozen=True)
class Assumptions:
    """What cannot be counted."""

    tflops: float = 60.0
    """Sustained speed of one GPU, in 10^12 operations per second (a product and a sum are two)."""
    train_views: int = 4
    """Stored views of each training image, where training reads those."""
    token_bytes: int = 2
    """Bytes of a stored number of a token."""
    image_shape: float = 4 / 3
    """Longer side of an image over its shorter one, for the size of the image store."""


@dataclass
class PlaceCost:
    """All runs on one dataset and backbone."""

    dataset: str
    backbone: str
    rows: int
    runs: int = 0
    images: int = 0
    """Images that training steps see, over all runs."""
    operations: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WAYS, 0.0))
    """By way."""
    image_store: float = 0.0
    """Bytes of packed images."""
    eval_tokens: float = 0.0
    """Bytes of stored tokens of evaluation views."""
    train_tokens: float = 0.0
    """Bytes of stored tokens of training views."""
    read_images: float = 0.0
    """Bytes of crops that an epoch of a job reads from the image store."""
    read_tokens: float = 0.0
    """Bytes of tokens that an epoch of a job reads from stored views."""
    busy_images: float = 0.0
    """Bytes a second that keep a GPU busy while it trains all lanes from the image store."""


@dataclass(frozen=True)
class SweepCost:
    """The cost of an experiment."""

    title: str
    assumed: Assumptions
    places: tuple[PlaceCost, ...]
    not_installed: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    """Rows whose operations cannot be counted without data, and why."""
    per_image: dict[str, float] = field(default_factory=dict)
    """Per backbone and method the operations of a training step for each image."""

    def hours(self, operations: float) -> float:
        """GPU hours of this many operations."""
        return operations / (self.assumed.tflops * 1e12) / 3600

    def total(self, way: str) -> float:
        """Operations of all runs."""
        return sum(environment.operations[way] for environment in self.places)

    def stored_images(self) -> float:
        """Bytes of all packed images: once for all backbones."""
        return sum({environment.dataset: environment.image_store for environment in self.places}.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        places = [{**asdict(p), "gpu_hours": {w: self.hours(p.operations[w]) for w in WAYS}} for p in self.places]
        return {
            "title": self.title,
            "assumed": asdict(self.assumed),
            "places": places,
            "per_image": self.per_image,
            "total": {
                "runs": sum(p.runs for p in self.places),
                "images": sum(p.images for p in self.places),
                "operations": {way: self.total(way) for way in WAYS},
                "gpu_hours": {way: self.hours(self.total(way)) for way in WAYS},
                "store_bytes": self.stored_images() + sum(p.eval_tokens + p.train_tokens for p in self.places),
            },
            "not_installed": list(self.not_installed),
            "uncounted": list(self.uncounted),
        }


def cost_of(experiment: Experiment, asked: Asked, environment: RunEnvironment, assumed: Assumptions) -> SweepCost:
    """Count every run of an experiment once."""
    places: dict[tuple[str, str], list[RunCount]] = {}
    uncounted: dict[str, None] = {}
    per_image: dict[str, float] = {}
    seen: set[str] = set()
    for study, jobs in prepare_studies(experiment, asked, lambda text: None):
        counts = places.setdefault((study.dataset, study.backbone), [])
        for job in jobs.values():
            try:
                one = count_run(dataclasses.replace(job.request, seeds=(0,)), environment.root)
            except GcdbenchError as fault:
                uncounted[f"{job.label}: {fault}"] = None
                continue
            if run_id(one.config) in seen:  # two rows may mean the same run
                continue
            seen.add(run_id(one.config))
            counts += [_with_seed(one, seed) for seed in job.request.seeds or (0,)]
            if one.stages:
                name = f"{study.backbone}: {one.config.method} ({one.config.recipe}), {study.dataset}"
                per_image[name] = _per_image(one)
    found = [_place(d, b, counts, environment.lanes, assumed) for (d, b), counts in places.items() if counts]
    rows = installed_rows(experiment)
    missing = tuple(row.label for row in experiment.rows if row not in rows)
    return SweepCost(experiment.title, assumed, tuple(found), missing, tuple(uncounted), per_image)


def _with_seed(run: RunCount, seed: int) -> RunCount:
    return dataclasses.replace(run, config=dataclasses.replace(run.config, seed=seed))


def _per_image(run: RunCount) -> float:
    """Operations of one image in a step of the last stage: the trunk on its views, and the method's own part."""
    return run.config.views.count * run.trunk + run.stages[-1].step / run.config.train.batch_size


def _place(dataset: str, backbone: str, runs: list[RunCount], lanes: int, assumed: Assumptions) -> PlaceCost:
    """All runs on one dataset and backbone; those of one stream share its trunk passes, ``lanes`` at a time."""
    some = runs[0]
    tokens = some.tokens[0] * some.tokens[1] * assumed.token_bytes
    views = some.config.views
    found = PlaceCost(dataset, short_name(backbone), some.rows, len(runs))
    found.images = sum(run.epochs * run.views_per_epoch // run.config.views.count for run in runs)
    found.image_store = some.rows * 3 * views.resize**2 * assumed.image_shape
    found.eval_tokens = some.rows * tokens
    found.train_tokens = found.eval_tokens * assumed.train_views
    found.read_images = some.rows * views.count * 3 * views.crop**2
    found.read_tokens = some.rows * views.count * tokens
    own = sum(run.own for run in runs)
    fresh = sum(p.rows * run.trunk for run in runs for p in run.passes("train"))
    evaluated = sum(p.rows * run.trunk for run in runs for p in run.passes("test"))
    stored = max((run.trunk for run in runs), default=0) * some.rows
    groups = list(_groups(runs, lanes))
    shared = sum(map(_shared, groups))
    once = stored * assumed.train_views
    found.operations = {
        "alone": sum(_shared([run]) for run in runs) + own + fresh + evaluated,
        "lanes": shared + own + fresh + evaluated,
        "eval_store": shared + own + fresh + min(stored, evaluated),
        # Random views of a whole pool are then stored ones as well.
        "train_views": min(once, shared + fresh) + own + min(stored, evaluated),
    }
    busiest = max((group for group in groups if group[0].stages), key=len, default=[])
    if busiest:
        each = views.count * busiest[0].trunk + sum(r.stages[-1].step / r.config.train.batch_size for r in busiest)
        found.busy_images = views.count * 3 * views.crop**2 * assumed.tflops * 1e12 / each
    return found


def _shared(group: Iterable[RunCount]) -> float:
    """Operations of the trunk passes of runs with one stream; those in a stage of the same name share an epoch."""
    epochs: dict[str, tuple[int, int]] = {}
    for run in group:
        for stage in run.stages:
            most = epochs.get(stage.name, (0, 0))[0]
            epochs[stage.name] = (max(most, stage.epochs), run.views_per_epoch * run.trunk)
    return float(sum(count * each for count, each in epochs.values()))


def _groups(runs: Iterable[RunCount], lanes: int) -> Iterable[list[RunCount]]:
    """Runs that share trunk passes, as `gcdbench.runs.lane_groups` packs them."""
    by_stream: dict[Hashable, list[RunCount]] = {}
    for run in runs:
        config, train = run.config, run.config.train
        weights = config.seed if config.backbone.weights == "random" else None
        rule = selection_rule(config.eval.selection)
        tested = config.eval.rows == "test" or (rule.metric is not None and rule.rows == "test")
        key = (config.stream_seed, config.views, config.backbone, weights, config.data, config.store, tested)
        trunk = (train.batch_size, train.sampler, train.precision, train.micro_batch, train.compile)
        by_stream.setdefault((key, trunk), []).append(run)
    for group in by_stream.values():
        yield from (group[i : i + lanes] for i in range(0, len(group), lanes))
