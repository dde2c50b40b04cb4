"""A label means the same class in every part of a dataset."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcdbench import FileDataset, list_classes, listing, make_index
from gcdbench.config.sections import DataConfig
from gcdbench.contracts import ClassSplit
from gcdbench.errors import DataError
from gcdbench.prepare.opened_data import open_data
from tests.support.trees import write_image


class Parts(FileDataset):
    """Numbers the classes of each part by itself."""

    name = "parts"
    title = "Parts"
    layout = "train/<class>/*.png, test/<class>/*.png"

    def read_part(self, part):
        classes = list_classes(self.root / part)
        items, labels = listing(self.root / part, enumerate(classes))
        return self.root / part, make_index(items, labels, classes)

    def class_split(self):
        return ClassSplit((0,), (1, 2))


def test_parts_that_number_classes_differently_are_refused(tmp_path: Path):
    for part, kinds in (("train", ("ant", "bee", "cat")), ("test", ("bee", "cat"))):
        for kind in kinds:
            for number in range(4):
                write_image(tmp_path / part / kind / f"{number}.png")
    assert open_data(Parts, tmp_path, DataConfig()).test is None
    with pytest.raises(DataError, match="class names of Parts are not the same"):
        open_data(Parts, tmp_path, DataConfig(), with_test=True)
