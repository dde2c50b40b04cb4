"""All benchmarks in order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import clusters, growth, ranks, startup, steps, stores
from benchmarks.scene import QUICK, Scene, Sizes, Subjects
from benchmarks.steps import Found

PARTS: dict[str, Callable[[Scene], Iterator[Found]]] = {
    "step": steps.one_run,
    "lanes": steps.lanes,
    "evaluation": stores.evaluation,
    "train-views": steps.stored_views,
    "images": stores.image_store_speed,
    "k-means": clusters.kmeans,
    "concepts": clusters.concepts,
    "growth": growth.more_images,
    "classes": steps.classes,
    "ranks": ranks.ranks,
    "startup": startup.startup,
}
"""Benchmarks by name."""


def run_bench(quick: bool, only: tuple[str, ...], announce: Callable[[str], None]) -> Iterator[Found]:
    """What each benchmark finds, as it finds it."""
    with tempfile.TemporaryDirectory(prefix="gcdbench-bench-") as folder:
        scene = Scene(Path(folder), QUICK if quick else Sizes(), Subjects.read())
        for name, part in PARTS.items():
            if not only or name in only:
                announce(name)
                yield from part(scene)
