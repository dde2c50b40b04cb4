"""CUB-200-2011 in its official layout."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from gcdbench.contracts import Archive, ClassSplit, Expected, Index
from gcdbench.data.class_lists import published_split
from gcdbench.data.data_root import find_folder, missing
from gcdbench.data.datasets.files import FileDataset, make_index, read_lines
from gcdbench.errors import DataError

CLASSES = 200


class Cub(FileDataset):
    """200 bird species; the training rows are those marked 1 in train_test_split.txt, in images.txt order."""

    name = "cub"
    title = "CUB-200-2011"
    expected = Expected(train=5_994, test=5_794, classes=CLASSES)
    layout = (
        "CUB_200_2011/\n  images.txt\n  image_class_labels.txt\n  train_test_split.txt\n"
        "  classes.txt (optional, class names)\n  images/001.Black_footed_Albatross/*.jpg ..."
    )
    archives: ClassVar = (
        Archive(
            url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            md5="97eceeb196236b17998738112f37df78",
            sha256="0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
        ),
    )

    def read_part(self, part: str) -> tuple[Path, Index]:
        """Rows of one side of the official split."""
        folder = find_folder(self, ("CUB_200_2011", "cub/CUB_200_2011", "cub", "CUB", "."), "images.txt")
        files = self._table(folder / "images.txt")
        labels = self._numbers(folder / "image_class_labels.txt")
        is_train = self._numbers(folder / "train_test_split.txt")
        wanted = 1 if part == "train" else 0
        items: list[str] = []
        classes: list[int] = []
        for key, name in files.items():
            if key not in labels or key not in is_train:
                raise DataError(f"Image {key} of {folder / 'images.txt'} has no label or no split entry.")
            if not 1 <= labels[key] <= CLASSES:
                raise DataError(f"Image {key} has class {labels[key]} in image_class_labels.txt, not 1..{CLASSES}.")
            if is_train[key] == wanted:
                items.append(name)
                classes.append(labels[key] - 1)
        return folder / "images", make_index(items, classes, self._class_names(folder))

    def _table(self, path: Path) -> dict[str, str]:
        """`id value` lines in file order."""
        if not path.is_file():
            raise missing(self, f"there is no file {path}")
        table: dict[str, str] = {}
        for number, line in enumerate(read_lines(path), 1):
            if line.strip():
                key, _, value = line.strip().partition(" ")
                if not value:
                    raise DataError(f"Line {number} of {path} should be 'id value', not '{line}'.")
                table[key] = value.strip()
        return table

    def _numbers(self, path: Path) -> dict[str, int]:
        try:
            return {key: int(value) for key, value in self._table(path).items()}
        except ValueError as fault:
            raise DataError(f"The file {path} has a value that is not a whole number: {fault}.") from fault

    def _class_names(self, folder: Path) -> tuple[str, ...]:
        path = folder / "classes.txt"
        if not path.is_file():
            return tuple(str(c + 1) for c in range(CLASSES))
        names = self._table(path)
        return tuple(names.get(str(c + 1), str(c + 1)) for c in range(CLASSES))

    def class_split(self) -> ClassSplit:
        """The published (SSB) split."""
        return published_split(self.name)
