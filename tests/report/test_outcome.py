"""Classes and clusters from predictions, against cases made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gcdbench.errors import GcdbenchError
from gcdbench.records.record import read_record
from gcdbench.report.features import MAX_ROWS, choose_positions, tsne
from gcdbench.report.outcome import Outcome, read_outcome
from gcdbench.report.thumbnails import IN_ALL, PER_CLUSTER, data_uri, per_cluster


def outcome(cluster, target=None, num_base=2, confidence=None, names=("cat", "dog", "owl")):
    cluster = np.array(cluster)
    return Outcome(
        rows=np.arange(len(cluster)),
        cluster=cluster,
        target=None if target is None else np.array(target),
        confidence=None if confidence is None else np.array(confidence, dtype=np.float32),
        cluster_names={0: "cat", 1: "dog", 2: "novel 1", 3: "novel 2"},
        class_names=names,
        num_base=num_base,
    )


def test_classes_by_hand():
    """Cluster 3 holds the owls; one cat went to the dogs."""
    found = outcome([0, 0, 1, 1, 1, 3, 3], [0, 0, 0, 1, 1, 2, 2])
    cat, dog, owl = found.classes
    assert (cat.name, cat.is_base, cat.size, cat.predicted, cat.hits) == ("cat", True, 3, 2, 2)
    assert (dog.size, dog.predicted, dog.hits) == (2, 3, 2)
    assert (owl.is_base, owl.size, owl.hits) == (False, 2, 2)
    assert cat.accuracy == pytest.approx(200 / 3)
    assert found.confusion == {("base", "base"): 5, ("base", "novel"): 0, ("novel", "base"): 0, ("novel", "novel"): 2}


def test_clusters_by_hand():
    confidence = [0.9, 0.5, 0.6, 0.7, 0.8, 1.0, 0.2]
    found = outcome([0, 0, 1, 1, 1, 3, 3], [0, 0, 0, 1, 1, 2, 2], confidence=confidence).clusters
    assert [c.cluster for c in found] == [0, 1, 3]
    dogs = found[1]
    assert (dogs.name, dogs.size, dogs.matched, dogs.matched_is_base) == ("dog", 3, "dog", True)
    assert dogs.purity == pytest.approx(200 / 3)
    assert dogs.confidence == pytest.approx(70.0)
    assert dogs.positions.tolist() == [4, 3, 2]
    assert (found[2].name, found[2].matched, found[2].matched_is_base) == ("novel 2", "owl", False)


def test_more_clusters_than_classes():
    found = outcome([0, 1, 2, 3], [0, 1, 2, 2]).clusters
    assert sum(c.matched is None for c in found) == 1


def test_without_truth():
    found = outcome([0, 2, 2])
    assert found.classes == []
    assert found.confusion is None
    assert [(c.matched, c.purity) for c in found.clusters] == [(None, None)] * 2


def test_a_class_without_rows_is_there():
    assert [c.size for c in outcome([0, 1], [0, 1]).classes] == [1, 1, 0]


def test_real_predictions_agree_with_the_record(some_runs):
    record = read_record(next(some_runs.glob("rlcd/digits/*/record.json")))
    found = read_outcome(record)
    hits, rows = sum(c.hits for c in found.classes), sum(c.size for c in found.classes)
    assert 100 * hits / rows == pytest.approx(record.metrics["all"])
    base = [c for c in found.classes if c.is_base]
    assert 100 * sum(c.hits for c in base) / sum(c.size for c in base) == pytest.approx(record.metrics["base"])
    assert sum(c.predicted for c in base) == record.metrics["predicted_base_rows"]
    table = found.confusion
    share = 100 * table["base", "novel"] / (table["base", "base"] + table["base", "novel"])
    assert share == pytest.approx(record.metrics["base_to_novel"])


def test_damaged_predictions_are_a_sentence(some_runs, tmp_path):
    record = read_record(next(some_runs.glob("rlcd/digits/*/record.json")))
    (tmp_path / "predictions.npz").write_bytes(b"x")
    import dataclasses

    with pytest.raises(GcdbenchError, match="predictions in .* cannot be read"):
        read_outcome(dataclasses.replace(record, dir=str(tmp_path)))


def test_rows_for_a_map():
    few = outcome([0, 1, 2], [0, 1, 2])
    positions, label = choose_positions(few)
    assert positions.tolist() == label.tolist() == [0, 1, 2]
    target = np.arange(6000) % 100
    many = outcome(target, target, num_base=50)
    positions, label = choose_positions(many)
    classes = np.unique(label)
    assert len(classes) == 10
    assert (classes < 50).sum() == 5
    assert len(positions) == 600
    assert choose_positions(many)[0].tolist() == positions.tolist()
    assert len(choose_positions(outcome(np.zeros(5000, int), np.zeros(5000, int)))[0]) == MAX_ROWS
    one_sided = choose_positions(outcome(target, target, num_base=1))[1]
    assert len(np.unique(one_sided)) == 10


def test_maps_repeat_and_keep_groups_together():
    random = np.random.default_rng(0)
    centres = random.normal(0, 1, (2, 16))
    values = np.concatenate([c + random.normal(0, 0.05, (30, 16)) for c in centres])
    one, two = tsne({"a": values})["a"], tsne({"a": values})["a"]
    assert np.array_equal(one, two)
    gap = np.linalg.norm(one[:30].mean(0) - one[30:].mean(0))
    assert gap > 2 * np.linalg.norm(one[:30] - one[:30].mean(0), axis=1).mean()
    assert tsne({"a": values[:2]})["a"].shape == (2, 2)


def test_thumbnails():
    from PIL import Image

    assert data_uri(Image.new("L", (8, 8))).startswith("data:image/png;base64,")
    large = data_uri(Image.new("RGB", (3000, 1000)))
    assert large.startswith("data:image/jpeg;base64,")
    assert len(large) < 3000
    assert data_uri(Image.new("RGBA", (100, 100))).startswith("data:image/jpeg")
    assert per_cluster(10) == PER_CLUSTER
    assert 1 <= per_cluster(683) <= IN_ALL // 683
    assert per_cluster(10**6) == 1


def test_names_in_a_run_without_data(some_runs):
    record = read_record(next(some_runs.glob("simgcd/digits/*/record.json")))
    assert read_outcome(record).class_name(7) == "class 7"
    assert read_outcome(record, ("zero",)).class_name(0) == "zero"
    assert Path(record.dir).is_dir()
