"""Each dataset is read from a small tree in its official layout and file format."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gcdbench import registry
from gcdbench.config.sections import DataConfig
from gcdbench.data.splits import draw_labelled, make_split
from gcdbench.errors import DataError
from tests.support import trees

COUNTS = {
    "cifar10": (100, 30, 10),
    "cifar100": (300, 100, 100),
    "cub": (400, 200, 200),
    "scars": (392, 392, 196),
    "aircraft": (200, 200, 100),
    "herbarium19": (1366, 683, 683),
    "imagenet100": (200, 100, 100),
}


def open_dataset(name: str, root: Path):
    return registry.load("dataset", name)(root)


@pytest.mark.parametrize("name", COUNTS)
def test_reads_official_tree(name, tmp_path):
    trees.WRITERS[name](tmp_path)
    dataset = open_dataset(name, tmp_path)
    train, test, classes = COUNTS[name]
    for part, count in (("train", train), ("test", test)):
        index = dataset.index(part)
        assert len(index) == count
        assert len(set(index.items)) == count
        assert set(index.labels.tolist()) == set(range(classes))
        image = dataset.image(part, count - 1)
        assert image.mode == "RGB"
    split = make_split(dataset, dataset.index("train"), DataConfig())
    base = np.flatnonzero(np.isin(dataset.index("train").labels, split.base))
    assert len(split.base) + len(split.novel) == classes
    assert split.labelled.tolist() == sorted(base[draw_labelled(len(base), 0.5)])


@pytest.mark.parametrize("name", COUNTS)
def test_missing_data_is_a_sentence(name, tmp_path):
    with pytest.raises(DataError, match="not complete below") as fault:
        open_dataset(name, tmp_path).index("train")
    assert "gcdbench data fetch" in str(fault.value)
    assert fault.value.exit_code == 4


@pytest.mark.parametrize("name", ["cub", "scars", "aircraft"])
def test_index_needs_no_image(name, tmp_path):
    trees.WRITERS[name](tmp_path, images=False)
    dataset = open_dataset(name, tmp_path)
    assert len(dataset.index("train")) == COUNTS[name][0]
    with pytest.raises(DataError, match="images do not exist"):
        dataset.require_files("train")


@pytest.mark.parametrize("name", ["herbarium19", "imagenet100"])
def test_listing_opens_no_image(name, tmp_path):
    trees.WRITERS[name](tmp_path, images=False)
    dataset = open_dataset(name, tmp_path)
    assert len(dataset.index("train")) == COUNTS[name][0]
    with pytest.raises(DataError, match="cannot be read"):
        dataset.image("train", 0)


def test_cub_order_and_labels(tmp_path):
    folder = trees.write_cub(tmp_path, images=False)
    lines = (folder / "images.txt").read_text().splitlines()
    # Rows follow images.txt, whatever the order of its ids.
    (folder / "images.txt").write_text("\n".join(reversed(lines)) + "\n")
    index = open_dataset("cub", tmp_path).index("train")
    assert index.items[0] == "200.Bird_200/Bird_0001.jpg"
    assert index.labels[0] == 199
    assert index.class_names[199] == "200.Bird_200"


def test_scars_rows_follow_annotations(tmp_path):
    trees.write_scars(tmp_path, images=False)
    index = open_dataset("scars", tmp_path).index("train")
    assert index.items[:3] == ("00001.jpg", "00002.jpg", "00003.jpg")
    assert index.labels[:3].tolist() == [0, 5, 10]
    assert index.class_names[5] == "Maker Model 5"


def test_aircraft_ids_are_sorted_variants(tmp_path):
    trees.write_aircraft(tmp_path, images=False)
    dataset = open_dataset("aircraft", tmp_path)
    assert dataset.index("train").items[1] == "0001002.jpg"
    assert dataset.index("train").labels[:3].tolist() == [0, 7, 14]
    assert dataset.index("train").class_names[7] == "Type 007 B"
    assert (dataset.index("test").labels[:3] == [0, 7, 14]).all()


def test_incomplete_class_folders_are_refused(tmp_path):
    trees.write_herbarium(tmp_path / "h", images=False, classes=682)
    with pytest.raises(DataError, match="682 class folders instead of 683"):
        open_dataset("herbarium19", tmp_path / "h").index("train")
    trees.write_aircraft(tmp_path / "a", images=False, classes=99)
    with pytest.raises(DataError, match="99 variants instead of 100"):
        open_dataset("aircraft", tmp_path / "a").index("train")
    folder = trees.write_imagenet100(tmp_path / "i", images=False)
    shutil.rmtree(folder / "train" / "n01443537")
    with pytest.raises(DataError, match=r"lacks 1 of the 100 class folders \(n01443537"):
        open_dataset("imagenet100", tmp_path / "i").index("train")


def test_herbarium_classes_are_sorted_as_text(tmp_path):
    trees.write_herbarium(tmp_path, images=False)
    index = open_dataset("herbarium19", tmp_path).index("train")
    assert index.class_names[:3] == ("0", "1", "10")


@pytest.mark.parametrize(
    ("name", "writer", "move"),
    [
        ("cifar10", trees.write_cifar10, ("cifar-10-batches-py", ".")),
        ("cifar10", trees.write_cifar10, ("cifar-10-batches-py", "cifar10/cifar-10-batches-py")),
        ("cub", trees.write_cub, ("CUB_200_2011", "cub/CUB_200_2011")),
        ("scars", trees.write_scars, ("stanford_cars", "scars")),
        ("scars", trees.write_scars, ("stanford_cars/cars_train", "stanford_cars/cars_train/cars_train")),
        ("scars", trees.write_scars, ("stanford_cars/devkit", "stanford_cars/car_devkit/devkit")),
        ("herbarium19", trees.write_herbarium, ("herbarium_19/small-train", "herbarium_19/train")),
        ("imagenet100", trees.write_imagenet100, ("imagenet", "ILSVRC/Data/CLS-LOC")),
        ("imagenet100", trees.write_imagenet100, ("imagenet", "imagenet_100")),
        ("aircraft", trees.write_aircraft, ("fgvc-aircraft-2013b", "aircraft/fgvc-aircraft-2013b")),
    ],
)
def test_layout_variants(name, writer, move, tmp_path):
    source, root = tmp_path / "written", tmp_path / "root"
    writer(source)
    shutil.copytree(source, root)
    old, new = root / move[0], root / move[1]
    if move[1] == ".":
        root = old
    else:
        held = tmp_path / "held"
        old.rename(held)
        new.parent.mkdir(parents=True, exist_ok=True)
        held.rename(new)
    dataset = open_dataset(name, root)
    assert len(dataset.index("train")) == COUNTS[name][0]
    assert dataset.image("train", 0).size[0] > 0


def test_damaged_annotations_are_sentences(tmp_path):
    folder = trees.write_scars(tmp_path / "s", images=False)
    (folder / "devkit/cars_train_annos.mat").write_bytes(b"MATLAB 5.0 nonsense" * 20)
    with pytest.raises(DataError, match="cars_train_annos.mat cannot be read"):
        open_dataset("scars", tmp_path / "s").index("train")
    folder = trees.write_cub(tmp_path / "c", images=False)
    (folder / "image_class_labels.txt").write_text("1 first\n")
    with pytest.raises(DataError, match="not a whole number"):
        open_dataset("cub", tmp_path / "c").index("train")
    (folder / "images.txt").write_bytes(b"1 \xff\xfe.jpg\n")
    with pytest.raises(DataError, match="images.txt cannot be read"):
        open_dataset("cub", tmp_path / "c").index("test")
    folder = trees.write_cifar10(tmp_path / "x")
    (folder / "data_batch_3").write_bytes(b"\x80\x02}q\x00")
    with pytest.raises(DataError, match="data_batch_3 is not a CIFAR batch"):
        open_dataset("cifar10", tmp_path / "x").index("train")


def test_unreadable_image_is_named(tmp_path):
    folder = trees.write_scars(tmp_path)
    (folder / "cars_train/00002.jpg").write_bytes(b"not an image")
    dataset = open_dataset("scars", tmp_path)
    dataset.require_files("train")
    with pytest.raises(DataError, match=r"00002\.jpg cannot be read"):
        dataset.image("train", 1)


def test_grey_and_palette_images_become_rgb(tmp_path):
    folder = trees.write_scars(tmp_path)
    Image.new("L", (9, 9), 7).save(folder / "cars_train/00001.jpg")
    assert open_dataset("scars", tmp_path).image("train", 0).getpixel((0, 0)) == (7, 7, 7)


def test_cifar_pixels_are_channel_first(tmp_path):
    import pickle

    folder = trees.write_cifar10(tmp_path)
    content = pickle.loads((folder / "data_batch_1").read_bytes(), encoding="bytes")
    image = np.asarray(open_dataset("cifar10", tmp_path).image("train", 3))
    assert (image == content[b"data"][3].reshape(3, 32, 32).transpose(1, 2, 0)).all()


def test_images_that_are_too_thin_are_refused(tmp_path):
    from gcdbench.data.images import resized

    folder = trees.write_scars(tmp_path)
    trees.write_image(folder / "cars_train/00001.jpg", (3000, 2))
    with pytest.raises(DataError, match="00001.jpg is 3000 x 2 pixels"):
        resized(open_dataset("scars", tmp_path), "train", 0, 256)
