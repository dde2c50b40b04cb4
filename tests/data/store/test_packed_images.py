"""Packed images are the images that PIL decodes and resizes."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
import torch
from PIL import Image

from gcdbench.data.images import DirectImages, resize_shorter
from gcdbench.data.store.packed_images import INDEX, PIXELS, PackedImages, image_store, pack
from gcdbench.errors import DataError
from tests.data.test_datasets import open_dataset
from tests.support import trees
from tests.support.memory import resident


def fresh(tmp_path, writer=trees.write_cub, name="cub"):
    writer(tmp_path)
    return open_dataset(name, tmp_path)


def packed(tmp_path, dataset, part="train", resize=20, tick=None):
    store = image_store(tmp_path / "cache", dataset, part, resize)
    pack(store, dataset, part, resize, lambda text: None, tick)
    return PackedImages(store)


def one(images, row):
    found = images.gather(np.array([row])).compact()
    return found.flat.numpy().reshape(found.height[0], found.width[0], 3)


@pytest.mark.parametrize(
    ("name", "writer"),
    [
        ("cub", trees.write_cub),
        ("scars", trees.write_scars),
        ("aircraft", trees.write_aircraft),
        ("cifar10", trees.write_cifar10),
    ],
)
def test_pixels_equal_pil_for_official_layouts(name, writer, tmp_path):
    dataset = fresh(tmp_path, writer, name)
    images = packed(tmp_path, dataset)
    assert len(images) == len(dataset.index("train"))
    for row in range(len(images)):
        assert (one(images, row) == np.asarray(resize_shorter(dataset.image("train", row), 20))).all()


def test_real_jpegs_of_many_shapes(tmp_path):
    random = np.random.default_rng(0)
    for i, size in enumerate([(500, 333), (333, 500), (500, 500), (1023, 301), (61, 640)]):
        noise = Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize(size)
        folder = tmp_path / "data" / f"class {i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        noise.save(folder / f"{i}.jpg", quality=90)
    dataset = open_dataset("folder", tmp_path / "data")
    images = packed(tmp_path, dataset, resize=256)
    rows = np.array([4, 0, 4, 2, 1, 3])
    direct = DirectImages(dataset, "train", 256, keep_bytes=0).gather(rows)
    direct, stored = direct.compact(), images.gather(rows).compact()
    assert torch.equal(direct.flat, stored.flat)
    for side in ("start", "height", "width"):
        assert (getattr(direct, side) == getattr(stored, side)).all()


def test_progress_is_told(tmp_path):
    ticks = []
    images = packed(tmp_path, fresh(tmp_path), tick=lambda done, total: ticks.append((done, total)))
    assert ticks == [(n, len(images)) for n in range(1, len(images) + 1)]


def test_a_changed_file_is_another_store(tmp_path):
    dataset = fresh(tmp_path)
    before = image_store(tmp_path, dataset, "train", 20).path
    path = dataset.path("train", 0)
    os.utime(path, ns=(1, 1))
    assert image_store(tmp_path, open_dataset("cub", tmp_path), "train", 20).path != before
    assert image_store(tmp_path, dataset, "train", 21).path != before
    assert image_store(tmp_path, dataset, "test", 20).path != before


def test_an_unreadable_image_stops_packing_with_its_name(tmp_path):
    dataset = fresh(tmp_path)
    dataset.path("train", 2).write_bytes(b"junk")
    with pytest.raises(DataError, match=f"{dataset.path('train', 2).name} cannot be read"):
        packed(tmp_path, dataset)
    assert not list((tmp_path / "cache").glob("images/*/store.json"))


def test_damage_is_found(tmp_path):
    dataset = fresh(tmp_path)
    images = packed(tmp_path, dataset)
    pixels = images.path / PIXELS
    content = bytearray(pixels.read_bytes())
    content[3 * int(images.index["start"][2]) + 5] ^= 1
    pixels.write_bytes(content)
    store = image_store(tmp_path / "cache", dataset, "train", 20)
    again = PackedImages(store)
    one(again, 1)
    with pytest.raises(DataError, match="checksum of image 2 does not match.*Delete this folder"):
        one(again, 2)
    pixels.write_bytes(content[:-1])
    with pytest.raises(DataError, match="is damaged"):
        PackedImages(store)
    pixels.write_bytes(content)
    table = io.BytesIO((images.path / INDEX).read_bytes())
    (images.path / INDEX).write_bytes(table.getvalue()[:-1] + b"\x07")
    with pytest.raises(DataError, match="checksum of index.npy"):
        PackedImages(store)


def test_reading_does_not_grow_memory_with_the_number_of_images(tmp_path):
    """1,500 images of 192 kB are read in batches; what stays is not the 288 MB."""

    class Many:
        name = title = "many"

        def __init__(self, root):
            pass

        def index(self, part):
            from gcdbench.contracts import Index

            return Index(tuple(map(str, range(1500))), np.zeros(1500, dtype=np.int64), ("a",))

        def image(self, part, row):
            return Image.new("RGB", (256, 256), (row % 256, 0, 0))

        def content_hash(self, part):
            return ""

        files_hash = content_hash

    images = packed(tmp_path, Many(None), resize=256)
    images.gather(np.arange(30)).compact()
    before = resident()
    for start in range(0, 1500, 30):
        assert images.gather(np.arange(start, start + 30)).compact().flat[0] == start % 256
    assert resident() - before < 50e6
