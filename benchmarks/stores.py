"""Stores: evaluation from stored tokens, batches from packed images."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.figure import Claim, Figure, faster
from benchmarks.reference import PixelPool
from benchmarks.scene import Scene, Training, write_photographs
from benchmarks.steps import Found
from gcdbench.config.sections import ViewConfig
from gcdbench.data.datasets.folder import ImageFolder
from gcdbench.data.images import DirectImages, Images, resize_shorter
from gcdbench.data.prefetch import default_workers
from gcdbench.data.store.packed_images import PackedImages, image_store, pack
from gcdbench.data.stream import stream
from gcdbench.data.views import ViewPlan, random_plan
from gcdbench.prepare.run_context import run_pool
from gcdbench.prepare.token_stores import make_stores
from gcdbench.system.observer import Observer

CPU = torch.device("cpu")


def evaluation(scene: Scene) -> Iterator[Found]:
    """A pass over the evaluation views from the token store, against the whole network."""
    name = scene.subjects.methods[0]
    plain, stored = scene.run(name), scene.run(name, {"store.eval_tokens": "fp32"})
    make_stores(stored, Observer())
    rows = np.arange(scene.sizes.images)
    computed = torch.cat(list(plain.source.centre("train", rows, 64)))
    from_store = torch.cat(list(stored.source.centre("train", rows, 64)))
    yield Claim("stored fp32 tokens equal computed ones bit for bit", torch.equal(computed, from_store))
    (ours,), (theirs,) = Training([stored]).lanes, Training([plain], reference=True).lanes
    pool = run_pool(stored, "unlabelled", "bench")
    plans = [ViewPlan(c) for c in torch.from_numpy(stored.data.order["train"][pool.queries.index]).split(8)]
    source, crop = plain.source, plain.config.views.crop
    pixels = PixelPool([source.normalise(c) for _, c in stream(source.images["train"], plans, crop, 0, CPU)])
    one, other = ours.method.eval().predict(pool).confidence, theirs.method.eval().predict(pixels).confidence
    same = one is not None and other is not None and bool(np.allclose(one, other, rtol=1e-3))
    yield Claim("evaluation from the store gives the confidences of the whole network", same)
    value, detail = faster(lambda: theirs.method.predict(pixels), lambda: ours.method.predict(pool), scene.sizes.rounds)
    yield Figure("evaluation pass from the token store", value, 15.0, detail=detail)


def image_store_speed(scene: Scene) -> Iterator[Found]:
    """Batches from packed images, against decoding and resizing JPEGs in every epoch with as many threads."""
    folder, count = scene.folder / "many", scene.sizes.photographs
    write_photographs(folder, count)
    dataset = ImageFolder(folder)
    store = image_store(scene.folder / "cache", dataset, "train", 256)
    pack(store, dataset, "train", 256, lambda text: None)
    packed, direct = PackedImages(store), DirectImages(dataset, "train", 256, keep_bytes=0)
    random = torch.Generator().manual_seed(0)
    plans = [random_plan(rows, ViewConfig(), random) for rows in torch.randperm(count, generator=random).split(32)]
    workers = default_workers()

    def epoch(images: Images) -> Iterator[torch.Tensor]:
        return (views for _, views in stream(images, plans, 224, workers, CPU))

    once = zip(epoch(packed), epoch(direct), strict=True)
    yield Claim("packed images give the views of decoded ones bit for bit", all(torch.equal(a, b) for a, b in once))
    image = resize_shorter(dataset.image("train", 3), 256)
    left, top = ((side - 224) // 2 for side in image.size)
    ((_, centre),) = stream(packed, [ViewPlan(torch.tensor([3]))], 224, 0, CPU)
    expected = np.asarray(image.crop((left, top, left + 224, top + 224)))
    yield Claim("a packed image equals decode, resize and crop by PIL", bool((centre[0].numpy() == expected).all()))
    value, detail = faster(lambda: deque(epoch(direct), 0), lambda: deque(epoch(packed), 0), 3)
    yield Figure("batches from the image store, 500 px JPEGs", value, 8.0, detail=f"{detail}, {workers} threads")
