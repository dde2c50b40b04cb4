"""Whole runs on the embedded data: hidden labels, determinism, resuming, records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import gcdbench
from gcdbench.contracts import Method
from gcdbench.data.datasets.digits import Digits
from gcdbench.data.splits import row_order
from gcdbench.errors import UsageError
from gcdbench.system.observer import Observer
from gcdbench.training import batches as feed
from tests.support.runs import ROWS, assert_same, predictions, start, weights
from tests.support.trees import write_cifar10, write_image

pytestmark = pytest.mark.usefixtures("few_digits")


@pytest.mark.parametrize("method", ["rlcd", "simgcd"])
def test_hidden_labels_change_nothing(method, tmp_path, monkeypatch):
    """Shuffle the labels of all unlabelled rows: not one bit of weights or predictions may move."""
    one = start(tmp_path, method, "one")[0]
    pixels, labels = Digits(Path("."))._data
    from gcdbench.config.sections import DataConfig
    from gcdbench.data.splits import make_split

    digits = Digits(Path("."))
    split = make_split(digits, digits.index("train"), DataConfig())
    shuffled = labels.copy()
    shuffled[split.unlabelled] = np.random.default_rng(0).permutation(labels[split.unlabelled])
    assert (shuffled != labels).sum() > 200
    monkeypatch.setattr(Digits, "_data", (pixels, shuffled))
    # The published draw looks at which rows are base; the same rows must stay labelled for the comparison.
    monkeypatch.setattr(Digits, "labelled_rows", lambda self, index, base, ratio: split.labelled)
    two = start(tmp_path, method, "two")[0]
    assert_same(one, two, but=("target",))
    assert one.metrics["all"] != two.metrics["all"]
    assert one.metrics["confidence"] == two.metrics["confidence"]


@pytest.mark.parametrize("method", ["rlcd", "simgcd"])
def test_same_command_same_numbers(method, tmp_path):
    torch.manual_seed(1)
    one = start(tmp_path, method, "one")[0]
    torch.manual_seed(2)
    np.random.seed(2)
    two = start(tmp_path, method, "two")[0]
    assert_same(one, two)
    assert one.metrics == two.metrics
    assert one.run_id == two.run_id
    assert start(tmp_path, method, "one", seeds=1)[0].metrics != one.metrics


def test_a_run_leaves_the_global_random_state_alone(tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    start(tmp_path, epochs=1)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("method", ["rlcd", "simgcd"])
def test_interrupted_and_continued_equals_uninterrupted(method, tmp_path):
    whole = start(tmp_path, method, "whole", epochs=3)[0]

    class Stop(Observer):
        def step(self, t):
            if t.epoch == 1 and t.step == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, method, "torn", epochs=3, observer=Stop())
    folder = tmp_path / "torn" / method / "digits" / whole.run_id
    assert not (folder / "record.json").exists()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
    assert "stopped: KeyboardInterrupt" in (folder / "log.txt").read_text()
    # A line that was written after the last checkpoint must not survive.
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"epoch": 2, "torn": true}\n')
    again = start(tmp_path, method, "torn", epochs=3)[0]
    assert_same(whole, again)
    assert again.metrics == whole.metrics
    assert "torn" not in (folder / "metrics.jsonl").read_text()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3


def test_finished_runs_are_shown_and_force_repeats(tmp_path):
    first = start(tmp_path, epochs=1)[0]
    record = Path(first.dir) / "record.json"
    stamp = record.stat().st_mtime_ns
    assert start(tmp_path, epochs=1)[0].metrics == first.metrics
    assert record.stat().st_mtime_ns == stamp
    start(tmp_path, epochs=1, force=True)
    assert record.stat().st_mtime_ns != stamp


def test_record_and_files(tmp_path):
    record = start(tmp_path, seeds=(3,))[0]
    folder = Path(record.dir)
    assert folder == tmp_path / "runs/rlcd/digits" / record.run_id
    assert {p.name for p in folder.iterdir()} == {
        "config.json",
        "record.json",
        "metrics.jsonl",
        "predictions.npz",
        "places.json",
        "predictions.csv",
        "checkpoint",
        "log.txt",
    }
    data = json.loads((folder / "record.json").read_text())
    assert data["seed"] == 3
    assert data["recipe"] == "released"
    assert data["config"]["train"]["epochs"] == 2
    assert data["sources"]["train.epochs"] == "command line"
    assert data["selected"] == {"rule": "last", "stage": "main", "epoch": 2}
    assert data["protocol"]["scored_rows"] == "unlabelled"
    base_rows = int((Digits(Path("."))._data[1] < 5).sum())
    labelled = base_rows // 2
    assert data["data"] == {
        "labelled": labelled,
        "unlabelled": ROWS - labelled,
        "base_classes": 5,
        "novel_classes": 5,
        "scored": ROWS - labelled,
        "clusters": len(set(predictions(record)["cluster"].tolist())),
    }
    assert {"all", "base", "novel", "ob", "nmi", "ari", "pseudo_label_aux", "base_to_novel"} <= set(data["metrics"])
    arrays = predictions(record)
    assert arrays["row"].shape == arrays["cluster"].shape == arrays["base_aux"].shape == (ROWS - labelled,)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert lines[0]["lr"]["main"] > lines[1]["lr"]["main"]
    assert {"total", "main_ce", "distill", "aux_cdr"} <= set(lines[0]["losses"])
    rows = (folder / "predictions.csv").read_text().splitlines()
    assert rows[0] == "item,cluster,name,confidence"
    assert len(rows) == ROWS - labelled + 1


def test_metrics_can_be_recomputed_from_the_predictions(tmp_path):
    from gcdbench.toolbox.cluster_accuracy import v2

    record = start(tmp_path)[0]
    arrays = predictions(record)
    got = v2(arrays["target"], arrays["cluster"], 5)
    assert record.metrics["all"] == pytest.approx(100 * got.all)
    assert record.metrics["base"] == pytest.approx(100 * got.base)


def test_k_may_be_wrong(tmp_path):
    for k in (5, 14):
        record = start(tmp_path, epochs=1, k=k)[0]
        assert predictions(record)["cluster"].max() < k
        assert record.protocol["k"] == k
        assert record.protocol["k_source"] == "given"
    with pytest.raises(UsageError, match="5 base classes already"):
        start(tmp_path, k=4)


def test_ratios(tmp_path):
    record = start(tmp_path, epochs=1, label_ratio=0.1, novel_ratio=0.7)[0]
    assert record.data["base_classes"] == 3
    assert record.data["novel_classes"] == 7
    assert record.data["labelled"] == int(0.1 * (Digits(Path("."))._data[1] < 3).sum())
    none = start(tmp_path, epochs=1, label_ratio=0.0)[0]
    assert none.data["labelled"] == 0
    assert np.isfinite(list(none.metrics.values())).all()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_trains(precision, tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    leaked = []
    monkeypatch.setattr(RLCD, "on_step_end", lambda *_: leaked.append(torch.is_autocast_enabled("cpu")))
    record = start(tmp_path, epochs=2, precision=precision)[0]
    assert record.metrics["ob"] > 60
    assert leaked
    assert not any(leaked)  # backward and optimiser ran outside autocast
    assert all(torch.isfinite(w).all() for w in weights(record).values())
    assert all(w.dtype == torch.float32 for w in weights(record).values())


def test_test_rows_and_selection_rules(tmp_path):
    write_cifar10(tmp_path / "data", rows=30)
    values = {
        "backbone.weights": "random",
        "views.resize": 18,
        "views.crop": 16,
        "train.batch_size": 32,
        "eval.rows": "test",
        "eval.selection": "best-base-test",
    }
    record = gcdbench.run(
        "rlcd",
        "cifar10",
        backbone="digits-vit",
        epochs=3,
        settings=values,
        data_root=tmp_path / "data",
        runs=tmp_path / "runs",
    )[0]
    assert record.data["scored"] == 30
    lines = [json.loads(x) for x in (Path(record.dir) / "metrics.jsonl").read_text().splitlines()]
    bases = [line["metrics"]["base"] for line in lines]
    assert record.selected["epoch"] == int(np.argmax(bases)) + 1
    assert record.metrics["base"] == max(bases)
    assert "+" in record.protocol["index_hash"]
    assert any("instead of 50,000" in w for w in record.warnings)


def test_own_images_without_truth(tmp_path):
    for name, count in (("cat", 6), ("dog", 6), ("unlabelled", 9)):
        for i in range(count):
            write_image(tmp_path / "photos" / name / f"{i}.png")
    common = {
        "backbone": "digits-vit",
        "epochs": 1,
        "settings": {"views.resize": 18, "views.crop": 16, "train.batch_size": 8},
        "data_root": tmp_path / "photos",
        "runs": tmp_path / "runs",
    }
    with pytest.raises(UsageError, match="--k N"):
        gcdbench.run("rlcd", "folder", **common)
    record = gcdbench.run("rlcd", "folder", k=4, **common)[0]
    assert "all" not in record.metrics
    assert record.metrics["clusters_used"] >= 1
    rows = (Path(record.dir) / "predictions.csv").read_text().splitlines()[1:]
    assert len(rows) == 9
    assert {row.split(",")[2] for row in rows} <= {"cat", "dog", "novel 1", "novel 2"}


def test_batches_never_carry_hidden_labels(tmp_path, monkeypatch):
    seen = []
    original = feed.batches

    def spy(ctx, plans, ranks):
        for plan, batch in original(ctx, plans, ranks):
            seen.append((batch.target, batch.labelled, batch.index, len(batch.tokens)))
            yield plan, batch

    monkeypatch.setattr(feed, "batches", spy)
    start(tmp_path, epochs=1)
    assert len(seen) == ROWS // 64
    labels, order = Digits(Path("."))._data[1], row_order(Digits(Path(".")).index("train"))
    for target, labelled, index, tokens in seen:
        assert tokens == 2 * len(target) == 128
        assert (target[~labelled] == -1).all()
        assert (target[labelled].numpy() == labels[order[index[labelled]]]).all()


def test_pool_hides_labels(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    pools = []
    monkeypatch.setattr(RLCD, "on_epoch_start", lambda self, pool, t: pools.append(pool))
    start(tmp_path, epochs=1)
    few, pool = pools[0], pools[-1]  # of the rehearsal, and of the run
    assert len(few) == 64
    assert (few.target[~few.labelled] == -1).all()
    assert (few.queries.target == -1).all()
    assert set(few.target[few.labelled]) == set(range(5))
    assert len(pool) == ROWS
    assert (pool.target[~pool.labelled] == -1).all()
    assert pool.labelled.sum() == (labels := Digits(Path("."))._data[1] < 5).sum() // 2
    assert (pool.queries.target == -1).all()
    assert len(pool.queries) == ROWS - labels.sum() // 2
    features = pool.features(lambda tokens: tokens[:, 0], views="train")
    assert features.shape == (ROWS, 64)
    # Where the queries stand in the pool, and the same random numbers each time they are asked for.
    for each in (few, pool):
        assert (each.index[each.query_places] == each.queries.index).all()
        assert not each.labelled[each.query_places].any()
        one, two = (torch.rand(3, generator=each.generator()) for _ in range(2))
        assert torch.equal(one, two)
    assert not torch.equal(torch.rand(3, generator=few.generator()), torch.rand(3, generator=pool.generator()))
    with pytest.raises(UsageError, match="not 'other'"):
        pool.features(lambda tokens: tokens, views="other")


def test_a_method_without_training(tmp_path, monkeypatch):
    """A method with no stage is only asked to predict."""
    from gcdbench_rlcd import RLCD

    monkeypatch.setattr(RLCD, "stages", lambda self: ())
    record = start(tmp_path)[0]
    assert record.selected["epoch"] == 0
    assert isinstance(RLCD, type)
    assert issubclass(RLCD, Method)


def test_another_folder_with_the_same_names_is_another_run(tmp_path):
    ids = []
    for name in ("one", "two"):
        for kind, count in (("cat", 4), ("dog", 4), ("unlabelled", 4)):
            for i in range(count):
                write_image(tmp_path / name / kind / f"{i}.png")
        small = {"views.resize": 18, "views.crop": 16, "train.batch_size": 8}
        made = gcdbench.run(
            "rlcd",
            "folder",
            backbone="digits-vit",
            epochs=1,
            k=3,
            settings=small,
            data_root=tmp_path / name,
            runs=tmp_path / "runs",
        )
        ids.append(made[0].run_id)
    assert ids[0] != ids[1]
    with pytest.raises(UsageError, match="needs the true classes"):
        gcdbench.run(
            "rlcd",
            "folder",
            backbone="digits-vit",
            k=3,
            settings={**small, "eval.selection": "best-all-unlabelled"},
            data_root=tmp_path / "one",
            runs=tmp_path / "runs",
        )
