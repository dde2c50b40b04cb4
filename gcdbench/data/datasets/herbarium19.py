"""Herbarium-19: the resized ("small") images of the Kaggle competition."""

from __future__ import annotations

from pathlib import Path

from gcdbench.contracts import ClassSplit, Expected, Index
from gcdbench.data.class_lists import published_split
from gcdbench.data.data_root import missing
from gcdbench.data.datasets.files import FileDataset, list_classes, listing, make_index

CLASSES = 683
_ROOTS = ("herbarium_19", "herbarium19", "herbarium-2019-fgvc6", "herbarium", ".")
_FOLDERS = {"train": ("small-train", "train"), "test": ("small-validation", "validation")}


class Herbarium19(FileDataset):
    """683 plant species; class ids are the folder names in sorted (text) order."""

    name = "herbarium19"
    title = "Herbarium-19"
    expected = Expected(train=34_225, test=2_679, classes=CLASSES)
    layout = "herbarium_19/\n  small-train/<class>/*.jpg ...\n  small-validation/<class>/*.jpg ..."
    steps = (
        "Join the Kaggle competition 'herbarium-2019-fgvc6' and download the small (resized) archives "
        "small-train.tar and small-validation.tar.",
        "Unpack them to <data root>/herbarium_19/small-train/ and <data root>/herbarium_19/small-validation/, "
        "one folder per class.",
        "Run `gcdbench data verify herbarium19` to check the result.",
    )

    def read_part(self, part: str) -> tuple[Path, Index]:
        """Rows of the class folders."""
        for root in _ROOTS:
            for name in _FOLDERS[part]:
                folder = self.root / root / name
                if not folder.is_dir():
                    continue
                classes = list_classes(folder)
                if len(classes) != CLASSES:  # a missing folder would silently renumber all classes after it
                    raise missing(self, f"{folder} has {len(classes)} class folders instead of {CLASSES}")
                items, labels = listing(folder, enumerate(classes))
                return folder, make_index(items, labels, classes)
        raise missing(self, f"there is no folder {self.root / _ROOTS[0] / _FOLDERS[part][0]}")

    def class_split(self) -> ClassSplit:
        """The published split."""
        return published_split(self.name)
