"""The view pipeline against the same steps written out with PIL."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from gcdbench.config.sections import ViewConfig
from gcdbench.data.datasets.digits import Digits
from gcdbench.data.datasets.folder import ImageFolder
from gcdbench.data.images import DirectImages, Pixels, resize_shorter
from gcdbench.data.stream import stream
from gcdbench.data.views import Normalise, ViewPlan, plan_crops, random_plan, stored_plan
from gcdbench.errors import DataError
from tests.support.trees import write_image

CPU = torch.device("cpu")


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


def cut(images, plan, crop=16):
    return plan_crops(images.gather(plan.rows.numpy()), plan, crop).cut()


def by_pil(dataset, plan, resize=18, crop=16):
    """What torchvision's Resize, RandomCrop or CenterCrop and flip do, with the plan's numbers."""
    found = []
    for view in range(plan.views):
        for column, row in enumerate(plan.rows.tolist()):
            image = resize_shorter(dataset.image("train", row), resize)
            free_x, free_y = image.size[0] - crop, image.size[1] - crop
            if plan.top is None:
                x, y = round(free_x / 2.0), round(free_y / 2.0)
            else:
                x = min(int(plan.left[view, column].item() * (free_x + 1)), free_x)
                y = min(int(plan.top[view, column].item() * (free_y + 1)), free_y)
            piece = image.crop((x, y, x + crop, y + crop))
            if plan.mirror is not None and plan.mirror[view, column]:
                piece = ImageOps.mirror(piece)
            found.append(np.asarray(piece))
    return np.stack(found)


def test_centre_crop_equals_pil(pictures):
    plan = ViewPlan(torch.arange(5))
    assert (cut(DirectImages(pictures, "train", 18), plan).numpy() == by_pil(pictures, plan)).all()


def test_random_crops_and_flips_equal_pil(pictures):
    images, random = DirectImages(pictures, "train", 18), torch.Generator().manual_seed(3)
    for _ in range(20):
        plan = random_plan(torch.tensor([2, 0, 2, 4, 1, 3]), ViewConfig(resize=18, crop=16), random)
        assert (cut(images, plan).numpy() == by_pil(pictures, plan)).all()


def test_the_corners_of_the_free_play_are_reached(pictures):
    images = DirectImages(pictures, "train", 18)
    shares = torch.tensor([[0.0, 1 - 2**-24, 0.5]])
    views = cut(images, ViewPlan(torch.tensor([2, 2, 0]), shares, shares, torch.tensor([[False, True, False]])))
    whole = torch.from_numpy(np.array(resize_shorter(pictures.image("train", 2), 18)))
    assert torch.equal(views[0], whole[:16, :16])
    assert torch.equal(views[1], whole[-16:, -16:].flip(1))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_cutting_by_index_equals_cutting_lines(data):
    """The form for accelerators gives the pixels of the form for CPUs, whatever the sizes."""
    crop = data.draw(st.integers(1, 9))
    sizes = data.draw(st.lists(st.tuples(st.integers(crop, 14), st.integers(crop, 14)), min_size=1, max_size=5))
    height, width = (np.array(side, dtype=np.int64) for side in zip(*sizes, strict=True))
    start = np.cumsum(height * width) - height * width
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    flat = torch.randint(0, 256, (3 * int((height * width).sum()),), dtype=torch.uint8, generator=random)
    plan = random_plan(torch.arange(len(sizes)), ViewConfig(resize=20, crop=crop), random)
    crops = plan_crops(Pixels(flat, start, height, width), plan, crop)
    assert torch.equal(crops.cut(), crops._cut_by_index())


def test_random_plan_covers_every_position():
    plan = random_plan(
        torch.zeros(4000, dtype=torch.long), ViewConfig(resize=18, crop=16), torch.Generator().manual_seed(0)
    )
    assert plan.views == 2
    assert set((plan.top * 3).long().flatten().tolist()) == {0, 1, 2}
    assert abs(plan.mirror.float().mean() - 0.5) < 0.03
    assert not torch.equal(plan.top[0], plan.top[1])


def test_stored_views_of_a_row_are_different_and_all_are_used():
    plan = stored_plan(torch.arange(500), 2, 5, torch.Generator().manual_seed(0))
    assert plan.views == 2
    assert (plan.stored[0] != plan.stored[1]).all()
    for view in plan.stored:
        assert torch.bincount(view, minlength=5).min() > 60


def test_normalise_is_to_tensor_and_normalise():
    config = ViewConfig()
    pixels = torch.randint(0, 256, (2, 16, 16, 3), dtype=torch.uint8)
    planes = pixels.permute(0, 3, 1, 2).float() / 255
    expected = (planes - torch.tensor(config.mean).view(3, 1, 1)) / torch.tensor(config.std).view(3, 1, 1)
    assert torch.equal(Normalise(config, CPU)(pixels), expected)


def test_readers_change_nothing(pictures):
    images = DirectImages(pictures, "train", 18, keep_bytes=0)
    random = torch.Generator().manual_seed(1)
    plans = [random_plan(torch.tensor([i % 4, 4]), ViewConfig(resize=18, crop=16), random) for i in range(12)]
    alone = [views for _, views in stream(images, plans, 16, 0, CPU)]
    for workers in (1, 3):
        helped = [views for _, views in stream(images, plans, 16, workers, CPU)]
        assert all(torch.equal(a, b) for a, b in zip(alone, helped, strict=True))


def test_small_sets_are_kept_in_memory(monkeypatch):
    digits = Digits(Path("."))
    kept, fresh = (DirectImages(digits, "train", 18, keep_bytes=size) for size in (1 << 30, 0))
    assert (kept.small, fresh.small) == (True, False)
    rows = np.array([7, 3, 7])
    first = kept.gather(rows)
    assert torch.equal(first.flat, fresh.gather(rows).flat)
    monkeypatch.setattr(Digits, "image", None)
    assert torch.equal(kept.gather(rows).flat, first.flat)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_one_sentence_also_from_a_reader(workers, pictures):
    pictures.path("train", 2).write_bytes(b"junk")
    images = DirectImages(pictures, "train", 18, keep_bytes=0)
    with pytest.raises(DataError, match=r"2\.png cannot be read") as fault:
        list(stream(images, [ViewPlan(torch.tensor([0, 2]))], 16, workers, CPU))
    assert "\n" not in str(fault.value)


def test_a_stream_that_is_left_early_stops_its_readers(pictures):
    import threading

    images = DirectImages(pictures, "train", 18, keep_bytes=0)
    views = stream(images, (ViewPlan(torch.tensor([i % 5])) for i in range(1000)), 16, 2, CPU)
    next(views)
    views.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("gcdbench-reader")]
