"""CIFAR-10 and CIFAR-100 in the official python (pickle batch) version."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gcdbench.contracts import Archive, ClassSplit, Dataset, Expected, Index
from gcdbench.data.class_lists import published_split
from gcdbench.data.data_root import find_folder, missing
from gcdbench.data.datasets.files import stat_hash
from gcdbench.data.formats.restricted_pickle import load_batch
from gcdbench.errors import DataError


class _Cifar(Dataset):
    folder_name: ClassVar[str]
    files: ClassVar[dict[str, tuple[str, ...]]]
    meta: ClassVar[str]
    label_key: ClassVar[bytes]
    names_key: ClassVar[bytes]

    @cached_property
    def _folder(self) -> Path:
        places = (self.folder_name, f"{self.name}/{self.folder_name}", self.name, ".")
        return find_folder(self, places, self.files["train"][0])

    @cached_property
    def _indices(self) -> dict[str, Index]:
        return {}

    @cached_property
    def _pixels(self) -> dict[str, NDArray[np.uint8]]:
        return {}

    def _load(self, part: str) -> tuple[NDArray[np.uint8], Index]:
        pixels, labels, items = [], [], []
        for name in self.files[part]:
            path = self._folder / name
            if not path.is_file():
                raise missing(self, f"there is no file {path}")
            data, batch_labels = self._batch(path)
            pixels.append(data)
            labels.append(batch_labels)
            items += [f"{name}:{row}" for row in range(len(data))]
        index = Index(tuple(items), np.concatenate(labels), self._class_names())
        return np.concatenate(pixels).reshape(-1, 3, 32, 32), index

    def _batch(self, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        content = load_batch(path)
        data, raw = content.get(b"data"), content.get(self.label_key)
        if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072 or data.dtype != np.uint8:
            raise DataError(f"The file {path} has no 'data' array of rows x 3072 bytes.")
        classes = self.expected.classes if self.expected else 0
        if not isinstance(raw, list) or len(raw) != len(data) or not all(type(label) is int for label in raw):
            raise DataError(f"The file {path} has no list '{self.label_key.decode()}' with one label per row.")
        if not all(0 <= label < classes for label in raw):
            raise DataError(f"The file {path} has labels outside 0..{classes - 1}.")
        return data, np.array(raw, dtype=np.int64)

    def _class_names(self) -> tuple[str, ...]:
        path = self._folder / self.meta
        classes = self.expected.classes if self.expected else 0
        if not path.is_file():
            return tuple(str(c) for c in range(classes))
        names = load_batch(path).get(self.names_key, [])
        if not isinstance(names, list) or len(names) != classes or not all(isinstance(n, bytes | str) for n in names):
            raise DataError(f"The file {path} does not name {classes} classes.")
        return tuple(n.decode("utf-8", "replace") if isinstance(n, bytes) else n for n in names)

    def index(self, part: str) -> Index:
        """Rows in file order. Pixels are kept only once an image is asked for: a run on stored images never asks."""
        if part not in self._indices:
            self._indices[part] = self._load(part)[1]
        return self._indices[part]

    def image(self, part: str, row: int) -> Image.Image:
        """The 32 x 32 image of a row."""
        if part not in self._pixels:
            self._pixels[part] = self._load(part)[0]
        return Image.fromarray(self._pixels[part][row].transpose(1, 2, 0))

    def files_hash(self, part: str) -> str:
        """Size and time of the batch files."""
        return stat_hash(self._folder / name for name in self.files[part])

    def class_split(self) -> ClassSplit:
        """The published split."""
        return published_split(self.name)


class Cifar10(_Cifar):
    """CIFAR-10: classes 0-4 are base."""

    name = "cifar10"
    title = "CIFAR-10"
    expected = Expected(train=50_000, test=10_000, classes=10)
    folder_name = "cifar-10-batches-py"
    files: ClassVar = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
    meta = "batches.meta"
    label_key = b"labels"
    names_key = b"label_names"
    layout = "cifar-10-batches-py/\n  data_batch_1 ... data_batch_5\n  test_batch\n  batches.meta"
    archives = (
        Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
            sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
    )


class Cifar100(_Cifar):
    """CIFAR-100 with fine labels: classes 0-79 are base."""

    name = "cifar100"
    title = "CIFAR-100"
    expected = Expected(train=50_000, test=10_000, classes=100)
    folder_name = "cifar-100-python"
    files: ClassVar = {"train": ("train",), "test": ("test",)}
    meta = "meta"
    label_key = b"fine_labels"
    names_key = b"fine_label_names"
    layout = "cifar-100-python/\n  train\n  test\n  meta"
    archives = (
        Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        ),
    )
