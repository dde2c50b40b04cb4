from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from gcdbench.config.sections import DataConfig
from gcdbench.data.datasets.folder import ImageFolder
from gcdbench.data.splits import make_split
from gcdbench.errors import DataError, UsageError
from tests.support.trees import write_image


def test_class_folders_are_a_benchmark(tmp_path):
    for name in ("cat", "dog", "emu", "fox"):
        for i in range(4):
            write_image(tmp_path / name / f"{i}.png")
    dataset = ImageFolder(tmp_path)
    split = make_split(dataset, dataset.index("train"), DataConfig())
    assert split.base == (0, 1)
    assert split.novel == (2, 3)
    assert len(split.labelled) == 4
    assert split.complete


def test_unlabelled_folder_is_what_is_to_be_sorted(tmp_path):
    for name, count in (("cat", 3), ("dog", 2), ("unlabelled", 5)):
        for i in range(count):
            write_image(tmp_path / name / f"{i}.png")
    dataset = ImageFolder(tmp_path)
    index = dataset.index("train")
    split = make_split(dataset, index, DataConfig())
    assert index.class_names == ("cat", "dog")
    assert len(split.labelled) == 5
    assert len(split.unlabelled) == 5
    assert not split.complete


def test_csv_with_empty_labels(tmp_path):
    for i in range(6):
        write_image(tmp_path / "shots" / f"{i}.png")
    rows = [("shots/0.png", "b"), ("shots/1.png", "a"), *((f"shots/{i}.png", "") for i in range(2, 6))]
    table = tmp_path / "labels.csv"
    table.write_text("path,label\n" + "".join(f"{p},{label}\n" for p, label in rows))
    for root in (tmp_path, table):
        dataset = ImageFolder(root)
        index = dataset.index("train")
        assert index.labels.tolist() == [1, 0, -1, -1, -1, -1]
        assert dataset.image("train", 3).size == (24, 20)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file,label\na.png,x\n", "needs the header path,label"),
        ("path,label\n../a.png,x\n", "lies outside"),
        ("path,label\n/etc/passwd,x\n", "lies outside"),
        ("path,label\na.png,x\na.png,y\n", "listed twice"),
        ("path,label\na\0b.png,x\n", "lies outside|cannot be read"),
        ("path,label\n,x\n", "has no path"),
        ("path,label\na.png,\n", "at least one known class"),
        ("path,label\n", "no images"),
    ],
)
def test_bad_csv_is_a_sentence(text, words, tmp_path):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        ImageFolder(tmp_path).index("train")


def test_missing_folder(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        ImageFolder(tmp_path / "nowhere").index("train")


@pytest.mark.parametrize("config", [DataConfig(label_ratio=0.1), DataConfig(novel_ratio=0.5)])
def test_ratios_do_not_apply_to_given_labels(config, tmp_path):
    for name in ("cat", "dog", "unlabelled"):
        write_image(tmp_path / name / "0.png")
    dataset = ImageFolder(tmp_path)
    with pytest.raises(UsageError, match="do not apply"):
        make_split(dataset, dataset.index("train"), config)


def test_hidden_files_do_not_count(tmp_path):
    for name in ("cat/0.png", "dog/0.png", ".cache/0.png", "cat/._0.png"):
        write_image(tmp_path / name)
    assert ImageFolder(tmp_path).index("train").items == ("cat/0.png", "dog/0.png")


def test_deep_images_are_scaled_and_not_clipped(tmp_path):
    (tmp_path / "a").mkdir()
    deep = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(deep).save(tmp_path / "a" / "deep.png")
    write_image(tmp_path / "b" / "0.png")
    got = np.asarray(ImageFolder(tmp_path).image("train", 0))
    assert (got[..., 0] == deep // 257).all()
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "a" / "deep.tif")
    with pytest.raises(DataError, match="floating-point"):
        ImageFolder(tmp_path).image("train", 1)
