from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcdbench.config.sections import DataConfig
from gcdbench.contracts import ClassSplit, Index
from gcdbench.data.class_lists import imagenet100_wnids, published_split
from gcdbench.data.datasets.digits import Digits
from gcdbench.data.splits import cut_base, draw_labelled, index_hash, make_split, remap
from gcdbench.errors import UsageError


def md5(values: np.ndarray) -> str:
    return hashlib.md5(values.astype("<i8").tobytes()).hexdigest()


@pytest.mark.parametrize(
    ("count", "first", "drawn", "ordered"),
    [
        (
            25_000,
            [14149, 8946, 22378, 12162, 4879, 12710, 24595, 308],
            "51797c807e232f097ccbda04b2232b3b",
            "5083523b74942ba307ae1c3058a0b975",
        ),
        (
            40_000,
            [12836, 10913, 4214, 8198, 31403, 13917, 27440, 11667],
            "49380446ac0fa834319e337a853e724e",
            "4478a6fadec907372fdbd32eaea15d66",
        ),
    ],
)
def test_labelled_draw_is_the_published_one(count, first, drawn, ordered):
    positions = draw_labelled(count, 0.5)
    assert positions[:8].tolist() == first
    assert md5(positions) == drawn
    assert md5(np.sort(positions)) == ordered


def test_draw_does_not_touch_the_global_stream():
    np.random.seed(5)
    expected = np.random.rand()
    np.random.seed(5)
    draw_labelled(100, 0.5)
    assert np.random.rand() == expected


@pytest.mark.parametrize("name", ["cub", "scars", "aircraft", "herbarium19", "cifar10", "cifar100"])
def test_class_lists_equal_the_published_ones(name, golden: Path):
    entry = json.loads((golden / "class_splits.json").read_text())[name]
    novel = entry["novel"]
    if isinstance(novel, dict):
        novel = novel["hard"] + novel["medium"] + novel["easy"]
    split = published_split(name)
    assert list(split.base) == entry["base"]
    assert list(split.novel) == novel


def test_imagenet100_is_the_seed_0_draw(golden: Path):
    classes = json.loads((golden / "class_splits.json").read_text())["imagenet100"]["classes_of_imagenet1k"]
    draw = np.random.RandomState(0).choice(range(1000), 100, replace=False)
    assert sorted(draw.tolist()) == classes
    wnids = imagenet100_wnids()
    assert wnids[:2] == ("n01443537", "n01537544")
    assert len(set(wnids)) == 100
    assert list(wnids) == sorted(wnids)
    assert published_split("imagenet100") == ClassSplit(tuple(range(50)), tuple(range(50, 100)))


@pytest.mark.parametrize(("ratio", "keep"), [(0.6, 80), (0.75, 50)])
def test_novel_ratio_cuts_the_base_list(ratio, keep):
    before = published_split("cub")
    after = cut_base(before, ratio)
    assert after.base == before.base[:keep]
    assert after.novel == before.base[keep:] + before.novel


def test_published_ratio_may_be_written_with_fewer_digits():
    assert cut_base(published_split("herbarium19"), 0.5) == published_split("herbarium19")


def test_novel_ratio_cannot_be_lowered():
    with pytest.raises(UsageError, match="only be raised"):
        cut_base(published_split("cub"), 0.4)
    with pytest.raises(UsageError, match="no base class"):
        cut_base(published_split("cub"), 1.0)


def test_digits_split():
    digits = Digits(Path("."))
    index = digits.index("train")
    split = make_split(digits, index, DataConfig())
    assert (len(split.labelled), len(split.unlabelled)) == (450, 1347)
    base_rows = np.flatnonzero(index.labels < 5)
    assert split.labelled.tolist() == sorted(base_rows[draw_labelled(len(base_rows), 0.5)])
    assert (split.target == index.labels).all()


@given(
    labels=st.lists(st.integers(0, 7), min_size=12, max_size=60),
    ratio=st.floats(0, 1),
    order=st.permutations(range(8)),
    cut=st.integers(1, 7),
)
def test_split_partitions_rows_and_labels_only_base_classes(labels, ratio, order, cut):
    classes = ClassSplit(tuple(order[:cut]), tuple(order[cut:]))
    index = Index(tuple(map(str, range(len(labels)))), np.array(labels), tuple(map(str, range(8))))

    class Fake(Digits):
        def class_split(self):
            return classes

    base = np.isin(index.labels, classes.base)
    if int(ratio * base.sum()) == len(labels):
        return
    split = make_split(Fake(Path(".")), index, DataConfig(label_ratio=ratio))
    assert sorted([*split.labelled, *split.unlabelled]) == list(range(len(labels)))
    assert len(split.labelled) == int(ratio * base.sum())
    assert base[split.labelled].all()
    assert (split.target[split.labelled] < cut).all()
    both = (*classes.base, *classes.novel)
    assert [both[t] for t in split.target] == labels


def test_remap_keeps_unknown_rows_unknown():
    assert remap(np.array([3, -1, 1]), ClassSplit((1,), (3,))).tolist() == [1, -1, 0]


def test_index_hash_sees_names_and_labels():
    one = Index(("a", "b"), np.array([0, 1]), ("x", "y"))
    assert index_hash(one) != index_hash(Index(("a", "c"), np.array([0, 1]), ("x", "y")))
    assert index_hash(one) != index_hash(Index(("a", "b"), np.array([1, 1]), ("x", "y")))
    assert index_hash(one) == index_hash(Index(("a", "b"), np.array([0, 1]), ("p", "q")))
