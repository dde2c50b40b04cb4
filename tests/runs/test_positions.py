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
from gcdbench.contracts import Index, Prediction
from gcdbench.data.datasets.digits import Digits
from gcdbench.data.splits import row_order
from gcdbench.prepare import opened_data as dataside
from gcdbench.testing.positions import CHEATS, chance

pytestmark = pytest.mark.usefixtures("few_digits")


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


SMALL = {"views.resize": 18, "views.crop": 16, "train.batch_size": 32, "eval.batch_size": 64}


def counting(views):
    """Looks at nothing but when it is asked about a row: what reads files in their order would tell it their class."""

    def cheat(pool, classes):
        seen = 0

        def embed(tokens):
            nonlocal seen
            seen += len(tokens)
            return torch.arange(seen - len(tokens), seen, dtype=torch.float64)[:, None]

        place = pool.queries.features(embed, views=views)[:, 0].numpy()
        return (place * classes / seen).astype(np.int64)

    return cheat


HARNESS = {**CHEATS, "when they are embedded": counting("test"), "when random views are": counting("train")}


def cheating(monkeypatch, root, tmp_path, cheat, **more):
    """Accuracy of a method that looks at positions alone, and what chance gives at most."""
    answers = []

    def predict(self, pool):
        answers.append(cheat(pool, self.task.num_classes))
        return Prediction(answers[-1])

    monkeypatch.setattr(KMeans, "predict", predict)
    settings = {**SMALL, **more}
    (record,) = gcdbench.run(
        "kmeans", "folder", data_root=root, backbone="digits-vit", runs=tmp_path / "runs", force=True, settings=settings
    )
    with np.load(Path(record.dir) / "predictions.npz") as found:
        target = found["target"]
    return record.metrics["all"] / 100, chance(target, answers[-1], record.data["base_classes"])


@pytest.mark.parametrize("tokens", ["auto", "fp32"])
@pytest.mark.parametrize("what", HARNESS)
def test_positions_are_worth_no_more_than_chance(what, tokens, sorted_images, tmp_path, monkeypatch):
    monkeypatch.setenv("GCDBENCH_CACHE", str(tmp_path / "cache"))
    stored = {"store.eval_tokens": tokens}
    reached, limit = cheating(monkeypatch, sorted_images, tmp_path, HARNESS[what], **stored)
    assert reached <= limit < 0.5


def test_nothing_that_a_method_can_ask_a_pool_for_is_in_the_order_of_the_files(sorted_images, tmp_path, monkeypatch):
    """No public attribute of a pool, and no argument of a callback, tells the rows of the dataset."""
    seen = []

    def predict(self, pool):
        for some in (pool, pool.queries):
            public = {name: getattr(some, name) for name in dir(some) if not name.startswith("_")}
            seen.extend(name for name, value in public.items() if isinstance(value, np.ndarray))
        return Prediction(np.zeros(len(pool.queries), dtype=np.int64))

    monkeypatch.setattr(KMeans, "predict", predict)
    gcdbench.run(
        "kmeans", "folder", data_root=sorted_images, backbone="digits-vit", runs=tmp_path / "r", settings=SMALL
    )
    assert set(seen) == {"index", "target", "labelled", "query_places"}


@pytest.mark.parametrize("what", HARNESS)
def test_in_the_order_of_the_files_they_would_tell_almost_everything(what, sorted_images, tmp_path, monkeypatch):
    """The control: without the shuffling, the same cheats work."""
    monkeypatch.setattr(dataside, "row_order", lambda index: np.arange(len(index)))
    reached, limit = cheating(monkeypatch, sorted_images, tmp_path, HARNESS[what])
    assert reached > 0.6 > limit


def test_predictions_are_written_in_the_order_of_the_dataset(sorted_images, tmp_path, monkeypatch):
    """The method answers in its own order; rows, truth and answers fit together on the disk."""
    files = sorted(str(path.relative_to(sorted_images)) for path in sorted_images.glob("*/*.png"))
    order = row_order(Index(tuple(files), np.zeros(len(files), dtype=np.int64), ()))
    asked = []

    def predict(self, pool):
        asked.append(order[pool.queries.index])
        return Prediction(asked[-1] % 6)

    monkeypatch.setattr(KMeans, "predict", predict)
    (record,) = gcdbench.run(
        "kmeans", "folder", data_root=sorted_images, backbone="digits-vit", runs=tmp_path / "runs", settings=SMALL
    )
    with np.load(Path(record.dir) / "predictions.npz") as found:
        rows = found["row"]
        assert (np.diff(rows) > 0).all()
        assert np.array_equal(found["cluster"], rows % 6)
        assert np.array_equal(found["target"], rows // 40)
    assert (np.diff(asked[-1]) < 0).any()
    lines = [line.split(",") for line in (Path(record.dir) / "predictions.csv").read_text().splitlines()[1:]]
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
    settings = {**SMALL, "method.projector_hidden": 16, "method.projector_out": 8}
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
