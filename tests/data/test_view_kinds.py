"""Views beyond crop and mirror: their numbers are drawn with the plan, and a view depends on nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gcdbench.config.sections import VIEW_KINDS, ViewConfig
from gcdbench.data.view_kinds import KINDS, OPERATIONS, affine, blurred, jittered, strong, with_kinds, zoomed
from gcdbench.data.views import NUMBERS, random_plan
from gcdbench.errors import UsageError
from tests.support.runs import start

ROWS = 6


def crops(views: int = 2, side: int = 24) -> torch.Tensor:
    """Smooth pictures, so that moving them a little changes them a little."""
    line = torch.linspace(0, 3, side)
    wave = torch.stack([torch.sin(line[:, None] * (i + 1) / 3 + line[None] + i) for i in range(views * ROWS * 3)])
    return ((wave + 1) * 127).byte().view(views * ROWS, 3, side, side).permute(0, 2, 3, 1).contiguous()


def drawn(views: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.rand(views, ROWS, NUMBERS, generator=torch.Generator().manual_seed(seed))


def test_every_kind_is_known_by_its_name():
    assert set(VIEW_KINDS) == {"weak", *KINDS}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_view_depends_on_its_own_image_and_numbers_alone(kind):
    images, numbers = crops(), drawn()
    whole = with_kinds(images, (kind, "weak"), numbers)
    assert whole.shape == images.shape
    assert whole.dtype == torch.uint8
    assert torch.equal(whole[ROWS:], images[ROWS:])  # the weak view is the crop as it is
    changed = (whole[:ROWS] != images[:ROWS]).flatten(1).any(1)
    assert changed.float().mean() > 0.5
    assert torch.equal(with_kinds(images, (kind, "weak"), numbers), whole)
    some = torch.tensor([4, 1])
    both = torch.cat([some, some + ROWS])
    assert torch.equal(with_kinds(images[both], (kind, "weak"), numbers[:, some])[:2], whole[some])
    assert not torch.equal(with_kinds(images, (kind, "weak"), drawn(seed=1))[:ROWS], whole[:ROWS])


def test_numbers_decide_what_is_done():
    image = crops()[0].permute(2, 0, 1)
    nothing = [0.0] * NUMBERS
    nothing[0], nothing[1] = 1.0, 0.5  # all of the area, as wide as high
    nothing[4] = nothing[9] = nothing[10] = nothing[12] = 0.99  # neither colour, grey, blur nor solarise
    assert (strong(image, nothing).int() - image.int()).abs().max() <= 1
    grey = strong(image, [*nothing[:9], 0.1, *nothing[10:]])
    assert torch.equal(grey[0], grey[1])
    assert not torch.equal(image[0], image[1])
    inverted = strong(image, [*nothing[:12], 0.05, *nothing[13:]])
    bright = image >= 128
    assert torch.equal(inverted[bright], 255 - image[bright])
    assert torch.equal(inverted[~bright], image[~bright])
    assert (jittered(image, [0.5] * 4).int() - image.int()).abs().max() <= 3


def test_zoom_takes_a_piece_of_at_least_two_fifths():
    image = torch.zeros(3, 40, 40, dtype=torch.uint8)
    image[:, :10, :10] = 255
    small = zoomed(image, [0.0, 0.5, 0.0, 0.0])  # two fifths of the area, at the top left
    share = (small[0] > 127).float().mean().item()
    assert share == pytest.approx(100 / (0.4 * 1600), abs=0.03)
    assert zoomed(image, [0.0, 0.5, 0.999, 0.999]).max() == 0


def test_blur_keeps_the_mean_and_follows_the_size_of_the_image():
    noise = torch.randint(0, 256, (3, 56, 56), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    spread = [blurred(noise, u).float().std().item() for u in (0.0, 0.5, 1.0)]
    assert spread[0] > spread[1] > spread[2]
    assert blurred(noise, 1.0).float().mean().item() == pytest.approx(noise.float().mean().item(), abs=1.5)
    assert blurred(noise[:, :2, :2], 1.0).shape == (3, 2, 2)


def test_affine_makes_things_smaller():
    white = torch.full((3, 41, 41), 255, dtype=torch.uint8)
    for u, scale in ((0.0, 0.7), (1.0, 0.875)):
        share = (affine(white, [0.5, 0.5, 0.5, 0.5, u])[0] > 127).float().mean().item()
        assert share == pytest.approx(scale**2, abs=0.05)


def test_all_operations_of_randaugment_work_both_ways():
    image = crops()[0].permute(2, 0, 1)
    assert len(OPERATIONS) == 14
    for operation in OPERATIONS:
        for strength in (-1.0, 0.3, 1.0):
            found = operation(image, (strength,))
            assert found.shape == image.shape
            assert found.dtype == torch.uint8


def test_weak_views_draw_nothing_more():
    rows = torch.arange(5)

    def plan(**settings):
        random = torch.Generator().manual_seed(3)
        return random_plan(rows, ViewConfig(**settings), random), torch.rand(1, generator=random)

    before, after = plan()
    kinds, later = plan(kinds=("weak", "strong"))
    assert before.drawn is None
    assert kinds.drawn.shape == (2, 5, NUMBERS)
    for name in ("top", "left", "mirror"):
        assert torch.equal(getattr(before, name), getattr(kinds, name))
    assert after != later
    part = kinds.share(1, 2)
    assert torch.equal(part.drawn, kinds.drawn[:, 1::2])


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(UsageError, match="Did you mean 'strong'"):
        ViewConfig(kinds=("weak", "stronk"))
    with pytest.raises(UsageError, match="one for each view"):
        ViewConfig(kinds=("strong",))


@pytest.mark.usefixtures("few_digits")
def test_a_run_with_strong_views(tmp_path):
    """Another run than with weak ones, which keeps its id; repeatable; and never from stored views."""
    settings = {"train.batch_size": 32}
    (weak,) = start(tmp_path, "simgcd", epochs=1, settings=settings)
    (named,) = start(tmp_path, "simgcd", epochs=1, settings={**settings, "views.kinds": []})
    assert named.run_id == weak.run_id
    kinds = {**settings, "views.kinds": ["weak", "strong"]}
    (one,) = start(tmp_path, "simgcd", epochs=1, settings=kinds)
    assert one.run_id != weak.run_id
    assert "views.kinds" in one.chosen
    (two,) = start(tmp_path / "again", "simgcd", epochs=1, settings=kinds)
    assert one.metrics == two.metrics
    first = [(Path(r.dir) / "metrics.jsonl").read_text() for r in (weak, one)]
    assert first[0] != first[1]
    with pytest.raises(UsageError, match="leave out one of them"):
        start(tmp_path, "simgcd", epochs=1, settings={**kinds, "store.train_views": 2})
