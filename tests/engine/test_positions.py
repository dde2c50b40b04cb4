"""Where a row stands must not tell its class: methods that cheat by position, through the real harness."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gcdbench_baselines.kmeans import KMeans
from gcdbench_simgcd import SimGCD
from PIL import Image

import gcdbench
from gcdbench.contracts import Prediction
from gcdbench.data.datasets.digits import Digits
from gcdbench.data.splits import row_order
from gcdbench.engine import dataside
from gcdbench.testing import positions
from gcdbench.testing.positions import CHEATS, chance


@pytest.fixture(scope="module")
def sorted_images(tmp_path_factory) -> Path:
    """Digits as a folder per class, as most published data sets have them."""
    root = tmp_path_factory.mktemp("sorted")
    pixels, labels = Digits(Path("."))._data
    for digit in range(6):
        (root / f"class {digit}").mkdir()
        for number, row in enumerate(np.flatnonzero(labels == digit)[:40]):
            image = Image.fromarray(pixels[row]).convert("RGB").resize((16, 16))
            image.save(root / f"class {digit}" / f"{number:03}.png")
    return root


def cheating(monkeypatch, root, tmp_path, cheat, **more):
    """Accuracy of a method that looks at positions alone, and what chance gives at most."""
    answers = []

    def predict(self, pool):
        answers.append(cheat(pool, self.task.num_classes))
        return Prediction(answers[-1])

    monkeypatch.setattr(KMeans, "predict", predict)
    (record,) = gcdbench.run(
        "kmeans", "folder", data_root=root, backbone="digits-vit", runs=tmp_path / "runs", force=True, **more
    )
    with np.load(Path(record.dir) / "predictions.npz") as found:
        target = found["target"]
    return record.metrics["all"] / 100, chance(target, answers[-1], record.data["base_classes"])


@pytest.mark.parametrize("what", CHEATS)
def test_positions_are_worth_no_more_than_chance(what, sorted_images, tmp_path, monkeypatch):
    reached, limit = cheating(monkeypatch, sorted_images, tmp_path, CHEATS[what])
    assert reached <= limit < 0.5


@pytest.mark.parametrize("what", CHEATS)
def test_in_the_order_of_the_files_they_would_tell_almost_everything(what, sorted_images, tmp_path, monkeypatch):
    """The control: without the shuffling, the same cheats work."""
    monkeypatch.setattr(dataside, "row_order", lambda index: np.arange(len(index)))
    reached, limit = cheating(monkeypatch, sorted_images, tmp_path, CHEATS[what])
    assert reached > 0.6 > limit


def test_predictions_are_written_in_the_order_of_the_dataset(sorted_images, tmp_path, monkeypatch):
    """The method answers in its own order; rows, truth and answers fit together on the disk."""
    space_rows = []

    def predict(self, pool):
        space_rows.append(pool.queries.rows)
        return Prediction(pool.queries.rows % 6)

    monkeypatch.setattr(KMeans, "predict", predict)
    (record,) = gcdbench.run("kmeans", "folder", data_root=sorted_images, backbone="digits-vit", runs=tmp_path / "runs")
    with np.load(Path(record.dir) / "predictions.npz") as found:
        rows = found["row"]
        assert (np.diff(rows) > 0).all()
        assert np.array_equal(found["cluster"], found["row"] % 6)
        assert np.array_equal(found["target"], found["row"] // 40)
    assert (np.diff(space_rows[-1]) < 0).any()
    lines = [line.split(",") for line in (Path(record.dir) / "predictions.csv").read_text().splitlines()[1:]]
    files = sorted(str(path.relative_to(sorted_images)) for path in sorted_images.glob("*/*.png"))
    assert [(item, int(cluster)) for item, cluster, *_ in lines] == [(files[row], row % 6) for row in rows]


def test_a_batch_and_a_pool_know_a_row_by_the_same_number(sorted_images, tmp_path, monkeypatch):
    """What memory banks need: the features of row i of the pool are those of the batch's row with number i."""
    kept, seen = {}, []
    original = SimGCD.forward

    def on_epoch_start(self, pool, t):
        assert np.array_equal(pool.index, np.arange(len(pool)))
        kept["target"], kept["labelled"] = torch.from_numpy(pool.target), torch.from_numpy(pool.labelled)

    def forward(self, batch, t):
        assert torch.equal(kept["target"][batch.index], batch.target)
        assert torch.equal(kept["labelled"][batch.index], batch.labelled)
        seen.append(len(batch.index))
        return original(self, batch, t)

    monkeypatch.setattr(SimGCD, "on_epoch_start", on_epoch_start)
    monkeypatch.setattr(SimGCD, "forward", forward)
    settings = {"method.projector_hidden": 16, "method.projector_out": 8, "train.batch_size": 32}
    more = {"backbone": "digits-vit", "runs": tmp_path / "runs", "epochs": 1, "settings": settings}
    gcdbench.run("simgcd", "folder", data_root=sorted_images, **more)
    assert len(seen) > 7


def test_the_order_depends_on_names_alone():
    index = Digits(Path(".")).index("train")
    order = row_order(index)
    assert sorted(order) == list(range(len(index)))
    assert np.array_equal(order, row_order(index))
    other = type(index)(index.items, np.roll(index.labels, 1), index.class_names)
    assert np.array_equal(order, row_order(other))
    renamed = type(index)(("new", *index.items[1:]), index.labels, index.class_names)
    assert not np.array_equal(order, row_order(renamed))
    # Fixed for ever: memory banks in checkpoints go by these numbers.
    assert row_order(type(index)(("a", "b", "c", "d", "e"), np.zeros(5, int), ("x",))).tolist() == [0, 3, 2, 4, 1]


def test_chance_is_what_shuffled_answers_reach():
    truth = np.repeat(np.arange(4), 50)
    assert 0.25 < chance(truth, truth.copy(), 2) < 0.5
    assert positions.DRAWS >= 100
