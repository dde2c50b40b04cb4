"""Stanford Cars: cars_train and cars_test with the devkit's .mat annotations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.contracts import ClassSplit, Expected, Index
from gcdbench.data.class_lists import published_split
from gcdbench.data.data_root import missing
from gcdbench.data.datasets.files import FileDataset, make_index
from gcdbench.data.formats.matfile import MatError, read_variable
from gcdbench.errors import DataError

CLASSES = 196

_ROOTS = ("stanford_cars", "scars", "cars", "StanfordCars", "stanford_car", "stanford-cars-dataset", ".")
_ANNOTATIONS = {
    "train": (
        "devkit/cars_train_annos.mat",
        "car_devkit/devkit/cars_train_annos.mat",
        "cars_train_annos.mat",
    ),
    "test": (
        "cars_test_annos_withlabels.mat",
        "devkit/cars_test_annos_withlabels.mat",
        "car_devkit/devkit/cars_test_annos_withlabels.mat",
        "cars_test_annos_withlabels (1).mat",
    ),
}
_META = ("devkit/cars_meta.mat", "car_devkit/devkit/cars_meta.mat", "cars_meta.mat")


class StanfordCars(FileDataset):
    """196 car models; rows in the order of the annotation file, images used whole (no box crop)."""

    name = "scars"
    title = "Stanford Cars"
    expected = Expected(train=8_144, test=8_041, classes=CLASSES)
    layout = (
        "stanford_cars/\n  cars_train/00001.jpg ...\n  cars_test/00001.jpg ...\n"
        "  devkit/cars_train_annos.mat\n  devkit/cars_meta.mat (optional, class names)\n"
        "  cars_test_annos_withlabels.mat (only to score test rows)"
    )
    steps = (
        "The original server no longer offers the files; get a copy (for example the Kaggle dataset "
        "'stanford-cars-dataset' for the images and 'cars_devkit' for the annotations).",
        "Put the training images into <data root>/stanford_cars/cars_train/ (00001.jpg to 08144.jpg).",
        "Put the test images into <data root>/stanford_cars/cars_test/ (00001.jpg to 08041.jpg).",
        "Put cars_train_annos.mat and cars_meta.mat into <data root>/stanford_cars/devkit/.",
        "To score test rows, put cars_test_annos_withlabels.mat into <data root>/stanford_cars/.",
        "Run `gcdbench data verify scars` to check the result.",
    )

    def read_part(self, part: str) -> tuple[Path, Index]:
        """Rows of the annotation file of a part."""
        root, annotations = self._find(part)
        rows = self._rows(annotations)
        items = [name for name, _ in rows]
        labels = [label - 1 for _, label in rows]
        folder = root / f"cars_{part}"
        if (folder / f"cars_{part}").is_dir():  # the Kaggle copy nests the folder once more
            folder = folder / f"cars_{part}"
        return folder, make_index(items, labels, self._class_names(root))

    def _find(self, part: str) -> tuple[Path, Path]:
        for name in _ROOTS:
            for relative in _ANNOTATIONS[part]:
                path = self.root / name / relative
                if path.is_file():
                    return self.root / name, path
        raise missing(self, f"there is no {self.root / _ROOTS[0] / _ANNOTATIONS[part][0]}")

    def _rows(self, path: Path) -> list[tuple[str, int]]:
        rows: list[tuple[str, int]] = []
        for entry in _read(path, "annotations"):
            name, label = _field(entry, "fname"), _field(entry, "class")
            number = isinstance(label, np.ndarray) and len(label) == 1 and np.isfinite(label[0])
            if not isinstance(name, str) or not number:
                raise DataError(f"{path} has no annotations with 'fname' (text) and 'class' (a number).")
            if Path(name).name != name or not 1 <= label[0] <= CLASSES or label[0] != int(label[0]):
                raise DataError(f"{path} has the row ('{name}', class {label[0]}); classes are 1..{CLASSES}.")
            rows.append((name, int(label[0])))
        if not rows:
            raise DataError(f"{path} has no annotations.")
        return rows

    def _class_names(self, root: Path) -> tuple[str, ...]:
        for relative in _META:
            if (root / relative).is_file():
                names = tuple(str(n) for n in _read(root / relative, "class_names"))
                if len(names) == CLASSES:
                    return names
        return tuple(str(c + 1) for c in range(CLASSES))

    def class_split(self) -> ClassSplit:
        """The published (SSB) split."""
        return published_split(self.name)


def _read(path: Path, variable: str) -> list[Any]:
    """A cell or struct array of a .mat file."""
    try:
        found = read_variable(path, variable)
    except (OSError, MatError) as fault:
        raise DataError(f"The annotation file {path} cannot be read: {fault}.") from fault
    if not isinstance(found, list):
        raise DataError(f"The annotation file {path} cannot be read: '{variable}' is no table.")
    return found


def _field(entry: Any, name: str) -> Any:
    return entry.get(name) if isinstance(entry, dict) else None
