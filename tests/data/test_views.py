"""The view pipeline against torchvision's transforms written out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gcdbench.config import ViewConfig
from gcdbench.data.datasets.digits import Digits
from gcdbench.data.datasets.folder import ImageFolder
from gcdbench.data.images import ResizedImages, resize_shorter
from gcdbench.data.stream import stream
from gcdbench.data.views import Normalise, ViewPlan, cut, random_plan
from gcdbench.errors import DataError
from tests.trees import write_image


@pytest.mark.parametrize(
    ("size", "expected"),
    [((40, 20), (32, 16)), ((20, 40), (16, 32)), ((33, 21), (25, 16)), ((16, 16), (16, 16))],
)
def test_resize_keeps_the_aspect_ratio(size, expected):
    assert resize_shorter(Image.new("RGB", size), 16).size == expected


@pytest.fixture
def pictures(tmp_path):
    for i, size in enumerate([(40, 30), (30, 40), (64, 31), (20, 20)]):
        write_image(tmp_path / "a" / f"{i}.png", size)
    write_image(tmp_path / "b" / "0.png", (33, 47))
    return ImageFolder(tmp_path)


def test_centre_crop_equals_pil(pictures):
    images = ResizedImages(pictures, "train", 18)
    views = cut(images, ViewPlan(torch.arange(5)), 16)
    for row in range(5):
        resized = resize_shorter(pictures.image("train", row), 18)
        width, height = resized.size
        left, top = round((width - 16) / 2.0), round((height - 16) / 2.0)
        expected = np.asarray(resized.crop((left, top, left + 16, top + 16)))
        assert (views[row].permute(1, 2, 0).numpy() == expected).all()


def test_random_crops_and_flips_are_what_the_plan_says(pictures):
    images = ResizedImages(pictures, "train", 18)
    rows = torch.tensor([2, 2, 0])
    top, left = torch.tensor([[0.0, 0.999, 0.5]]), torch.tensor([[0.0, 0.999, 0.5]])
    mirror = torch.tensor([[False, True, False]])
    views = cut(images, ViewPlan(rows, top, left, mirror), 16)
    whole = images[2]
    assert (views[0] == whole[:, :16, :16]).all()
    assert (views[1] == whole[:, -16:, -16:].flip(2)).all()


def test_random_plan_covers_every_position():
    plan = random_plan(
        torch.zeros(4000, dtype=torch.long), ViewConfig(resize=18, crop=16), torch.Generator().manual_seed(0)
    )
    assert plan.views == 2
    assert set((plan.top * 3).long().flatten().tolist()) == {0, 1, 2}
    assert abs(plan.mirror.float().mean() - 0.5) < 0.03
    assert not torch.equal(plan.top[0], plan.top[1])


def test_normalise_is_to_tensor_and_normalise():
    config = ViewConfig()
    pixels = torch.arange(0, 256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    expected = (pixels.float() / 255 - torch.tensor(config.mean).view(3, 1, 1)) / torch.tensor(config.std).view(3, 1, 1)
    assert torch.equal(Normalise(config, torch.device("cpu"))(pixels), expected)


def test_workers_change_nothing(pictures):
    images = ResizedImages(pictures, "train", 18, cache_bytes=0)
    random = torch.Generator().manual_seed(1)
    plans = [random_plan(torch.tensor([i, 4]), ViewConfig(resize=18, crop=16), random) for i in range(4)]
    alone = [views for _, views in stream(images, plans, 16, 0, False)]
    helped = [views for _, views in stream(images, plans, 16, 2, False)]
    assert all(torch.equal(a, b) for a, b in zip(alone, helped, strict=True))


def test_cache_returns_the_same_pixels():
    digits = Digits(Path("."))
    kept, fresh = (ResizedImages(digits, "train", 18, cache_bytes=size) for size in (1 << 30, 0))
    assert kept.fits
    assert not fresh.fits
    assert torch.equal(kept[7], fresh[7])
    assert kept[7] is kept[7]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_is_one_sentence_also_from_a_worker(workers, pictures):
    pictures.path("train", 2).write_bytes(b"junk")
    images = ResizedImages(pictures, "train", 18, cache_bytes=0)
    with pytest.raises(DataError, match=r"2\.png cannot be read") as fault:
        list(stream(images, [ViewPlan(torch.tensor([0, 2]))], 16, workers, False))
    assert "\n" not in str(fault.value)
