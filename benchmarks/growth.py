"""What a run costs as the number of images grows: time and memory, each size in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.figure import Figure, Growth, seconds
from benchmarks.scene import Scene
from benchmarks.steps import Found
from gcdbench.contracts import ClassSplit, Dataset, Index

COUNTS = (6_000, 12_000, 24_000)
SIDE = 36


class Noise(Dataset):
    """Random images that cost nothing to decode, any number of them."""

    name = "noise"
    title = "Noise"
    layout = "(nothing)"
    rows = 0

    def index(self, part: str) -> Index:
        """Ten classes in turn."""
        return Index(tuple(map(str, range(self.rows))), np.arange(self.rows) % 10, tuple("0123456789"))

    def image(self, part: str, row: int) -> Image.Image:
        """Random pixels of a class's brightness."""
        random = np.random.default_rng(row)
        return Image.fromarray(random.integers(0, 156, (SIDE, SIDE, 3), dtype=np.uint8) + np.uint8(row % 10 * 10))

    def class_split(self) -> ClassSplit:
        """Half and half."""
        return ClassSplit(tuple(range(5)), tuple(range(5, 10)))


def more_images(scene: Scene) -> Iterator[Found]:
    """An epoch with evaluation, from packed images and stored tokens, on 1x, 2x and 4x as many small images."""
    times, peaks = [], []
    for count in COUNTS:
        command = [sys.executable, "-m", __name__, str(count), scene.subjects.methods[0], str(scene.folder / "growth")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        times.append(found["seconds"])
        peaks.append(found["peak"] / 1e6)
    yield Growth("epoch and evaluation by number of images", COUNTS, tuple(times))
    yield Growth("peak memory by number of images", COUNTS, tuple(peaks), unit="MB")
    detail = f"{peaks[-1]:.0f} MB against {peaks[0]:.0f} MB"
    yield Figure("peak memory of 4x the images", peaks[-1] / peaks[0], 1.1, at_least=False, detail=detail)


def measure(count: int, method: str, folder: Path) -> dict[str, float]:
    """Train one epoch on ``count`` images; seconds and peak memory in bytes."""
    import dataclasses

    from gcdbench.data import images
    from gcdbench.prepare import token_source as tokens
    from gcdbench.prepare.environment import RunEnvironment, StoreOptions
    from gcdbench.prepare.request import RunRequest, resolve_request
    from gcdbench.prepare.run_context import prepare_run
    from gcdbench.prepare.shared_resources import SharedResources
    from gcdbench.prepare.token_stores import make_stores
    from gcdbench.records.run_directory import RunDirectory
    from gcdbench.records.trackers import Trackers
    from gcdbench.runs.finish import finish_run
    from gcdbench.system.observer import Observer
    from gcdbench.training.isolation import Guard
    from gcdbench.training.lane import Lane
    from gcdbench.training.loop import Clock, train

    # Small images stand for large ones, so nothing may be kept in memory for being small.
    images.KEEP_BYTES = tokens.KEEP_BYTES = 0
    settings = {
        "backbone.name": "digits-vit",
        "backbone.weights": "random",
        "views.resize": SIDE,
        "views.crop": SIDE - 4,
        "train.epochs": 1,
        "train.batch_size": 64,
        "store.eval_tokens": "fp32",
        "data.k": 10,
    }
    planned = resolve_request(RunRequest(method, "folder", seeds=(0,), settings=settings))
    planned = dataclasses.replace(planned, dataset_class=type("Noise", (Noise,), {"rows": count}))
    environment = RunEnvironment(root=Path("."), device="cpu", store_options=StoreOptions(folder))
    ctx = prepare_run(planned, planned.runs[0], SharedResources(environment))
    make_stores(ctx, Observer())
    run = RunDirectory(folder / str(count))
    run.open()
    run.write_config({})
    lane = Lane(ctx, run, Trackers((), print))
    took = seconds(lambda: train([lane], Guard(Observer()), Clock(), finish_run))
    if lane.fault is not None:
        raise lane.fault
    return {"seconds": took, "peak": float(ctx.compute.peak_memory())}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))))
