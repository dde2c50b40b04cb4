"""Small datasets in their official layouts and file formats."""

from __future__ import annotations

import json
import pickle
from importlib import resources
from pathlib import Path

import numpy as np
from PIL import Image

RANDOM = np.random.default_rng(0)
SMALL_VIEWS = tuple(
    "--backbone digits-vit --set views.resize=18 --set views.crop=16 --set train.batch_size=8".split()  # noqa: SIM905
)
"""Options for runs on a handful of small images."""


def write_image(path: Path, size: tuple[int, int] = (24, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RANDOM.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def _batch(path: Path, labels: list[int], key: bytes) -> None:
    data = RANDOM.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    content = {b"batch_label": b"x", key: labels, b"data": data, b"filenames": [b"f.png"] * len(labels)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def write_cifar10(root: Path, rows: int = 20, test_rows: int = 30) -> Path:
    folder = root / "cifar-10-batches-py"
    for i in range(5):
        _batch(folder / f"data_batch_{i + 1}", [(i * rows + j * 7) % 10 for j in range(rows)], b"labels")
    _batch(folder / "test_batch", [j % 10 for j in range(test_rows)], b"labels")
    names = [
        b"airplane",
        b"automobile",
        b"bird",
        b"cat",
        b"deer",
        b"dog",
        b"frog",
        b"horse",
        b"ship",
        b"truck",
    ]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))
    return folder


def write_cifar100(root: Path, rows: int = 300) -> Path:
    folder = root / "cifar-100-python"
    _batch(folder / "train", [(j * 37) % 100 for j in range(rows)], b"fine_labels")
    _batch(folder / "test", [j % 100 for j in range(100)], b"fine_labels")
    names = [f"class{i}".encode() for i in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}, protocol=2))
    return folder


def write_cub(root: Path, per_class: int = 3, images: bool = True) -> Path:
    folder = root / "CUB_200_2011"
    folder.mkdir(parents=True)
    names, labels, splits, number = [], [], [], 0
    for cls in range(1, 201):
        for i in range(per_class):
            number += 1
            file = f"{cls:03d}.Bird_{cls}/Bird_{i:04d}.jpg"
            names.append(f"{number} {file}")
            labels.append(f"{number} {cls}")
            splits.append(f"{number} {1 if i < per_class - 1 else 0}")
            if images:
                write_image(folder / "images" / file)
    (folder / "images.txt").write_text("\n".join(names) + "\n")
    (folder / "image_class_labels.txt").write_text("\n".join(labels) + "\n")
    (folder / "train_test_split.txt").write_text("\n".join(splits) + "\n")
    (folder / "classes.txt").write_text("".join(f"{c} {c:03d}.Bird_{c}\n" for c in range(1, 201)))
    return folder


def write_scars(root: Path, per_class: int = 2, images: bool = True, test: bool = True) -> Path:
    from scipy.io import savemat

    folder = root / "stanford_cars"
    fields = [(n, object) for n in ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")]
    for part, where in (("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        if part == "test" and not test:
            continue
        count = 196 * per_class
        table = np.empty((1, count), dtype=fields)
        for i in range(count):
            # Classes are interleaved as in the official file, so that order matters.
            table[0, i] = (1, 1, 9, 9, (i * 5) % 196 + 1, f"{i + 1:05d}.jpg")
            if images:
                write_image(folder / f"cars_{part}" / f"{i + 1:05d}.jpg")
        path = folder / where
        path.parent.mkdir(parents=True, exist_ok=True)
        savemat(str(path), {"annotations": table})
    names = np.empty((1, 196), dtype=object)
    names[0] = [f"Maker Model {i}" for i in range(196)]
    savemat(str(folder / "devkit/cars_meta.mat"), {"class_names": names})
    return folder


def write_aircraft(root: Path, per_class: int = 2, images: bool = True, classes: int = 100) -> Path:
    folder = root / "fgvc-aircraft-2013b" / "data"
    folder.mkdir(parents=True)
    number = 1000
    for part in ("trainval", "test"):
        lines = []
        for i in range(per_class * classes):
            number += 1
            lines.append(f"{number:07d} Type {(i * 7) % classes:03d} B")
            if images:
                write_image(folder / "images" / f"{number:07d}.jpg")
        (folder / f"images_variant_{part}.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_herbarium(root: Path, per_class: int = 2, images: bool = True, classes: int = 683) -> Path:
    folder = root / "herbarium_19"
    for part, count in (("small-train", per_class), ("small-validation", 1)):
        for cls in range(classes):
            for i in range(count):
                path = folder / part / str(cls) / f"{i}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                if images:
                    write_image(path)
                else:
                    path.write_bytes(b"")
    return folder


def imagenet100_wnids() -> list[str]:
    text = (resources.files("gcdbench.data") / "class_lists.json").read_text()
    return json.loads(text)["imagenet100"]["wnids"]


def write_imagenet100(root: Path, per_class: int = 2, images: bool = True) -> Path:
    folder = root / "imagenet"
    for wnid in [*imagenet100_wnids(), "n01440764", "n99999999"]:
        for part, count in (("train", per_class), ("val", 1)):
            for i in range(count):
                path = folder / part / wnid / f"{wnid}_{i}.JPEG"
                path.parent.mkdir(parents=True, exist_ok=True)
                if images:
                    write_image(path)
                else:
                    path.write_bytes(b"")
    return folder


WRITERS = {
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
    "cub": write_cub,
    "scars": write_scars,
    "aircraft": write_aircraft,
    "herbarium19": write_herbarium,
    "imagenet100": write_imagenet100,
}
