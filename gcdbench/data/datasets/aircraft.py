"""FGVC-Aircraft 2013b, variant annotations."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from gcdbench.contracts import Archive, ClassSplit, Expected, Index
from gcdbench.data.class_lists import published_split
from gcdbench.data.data_root import find_folder, missing
from gcdbench.data.datasets.files import FileDataset, make_index, read_lines
from gcdbench.errors import DataError

CLASSES = 100
_FILES = {"train": "images_variant_trainval.txt", "test": "images_variant_test.txt"}


class Aircraft(FileDataset):
    """100 aircraft variants; the training rows are the lines of the trainval file, class ids its sorted variants."""

    name = "aircraft"
    title = "FGVC-Aircraft"
    expected = Expected(train=6_667, test=3_333, classes=CLASSES)
    layout = (
        "fgvc-aircraft-2013b/data/\n  images_variant_trainval.txt\n  images_variant_test.txt\n"
        "  variants.txt (optional)\n  images/0034309.jpg ..."
    )
    archives: ClassVar = (
        Archive(
            url="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz",
            md5="d4acdd33327262359767eeaa97a4f732",
        ),
    )

    def read_part(self, part: str) -> tuple[Path, Index]:
        """Rows of the annotation file of a part."""
        places = (
            "fgvc-aircraft-2013b/data",
            "aircraft/fgvc-aircraft-2013b/data",
            "fgvc-aircraft-2013b",
            "aircraft/data",
            "aircraft",
            "data",
            ".",
        )
        folder = find_folder(self, places, _FILES["train"])
        rows = self._rows(folder / _FILES[part])
        # Ids come from the trainval file, so that both parts number the variants alike.
        names = sorted({name for _, name in (rows if part == "train" else self._rows(folder / _FILES["train"]))})
        if len(names) != CLASSES:
            raise missing(self, f"{folder / _FILES['train']} names {len(names)} variants instead of {CLASSES}")
        number = {name: i for i, name in enumerate(names)}
        unknown = next((name for _, name in rows if name not in number), None)
        if unknown is not None:
            raise DataError(f"{folder / _FILES[part]} names the variant '{unknown}', which the trainval file lacks.")
        items = [f"{image}.jpg" for image, _ in rows]
        return folder / "images", make_index(items, (number[name] for _, name in rows), names)

    def _rows(self, path: Path) -> list[tuple[str, str]]:
        """`image-id variant name` lines in file order."""
        if not path.is_file():
            raise missing(self, f"there is no file {path}")
        rows: list[tuple[str, str]] = []
        for number, line in enumerate(read_lines(path), 1):
            image, _, name = line.strip().partition(" ")
            if not line.strip():
                continue
            if not name or "/" in image or "\\" in image:
                raise DataError(f"Line {number} of {path} should be 'image variant', not '{line}'.")
            rows.append((image, name.strip()))
        return rows

    def class_split(self) -> ClassSplit:
        """The published (SSB) split."""
        return published_split(self.name)
