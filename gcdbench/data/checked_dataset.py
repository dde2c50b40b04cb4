"""A dataset as the harness uses it: what the plugin raises is reported as its fault, what it answers is checked, and
rows whose image cannot be read can be left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gcdbench.contracts import ClassSplit, Dataset, Index, IntArray
from gcdbench.data.splits import draw_rows
from gcdbench.errors import DataError, PluginError
from gcdbench.system.plugin_call import plugin_call


class OpenedDataset(Dataset):
    """Passes everything on to a dataset, row numbers translated."""

    def __init__(self, inner: Dataset) -> None:
        super().__init__(inner.root)
        self.inner = inner
        for name in ("name", "title", "expected", "views", "backbone", "layout", "steps", "archives"):
            setattr(self, name, getattr(inner, name))
        self._whole: dict[str, Index] = {}
        self._kept: dict[str, IntArray] = {}
        self._indices: dict[str, Index] = {}

    @contextmanager
    def _call(self, hook: str) -> Iterator[None]:
        """What the disk says is reported as such, everything else as the plugin's fault."""
        try:
            with plugin_call(self.name, hook, kind="dataset", passes=(OSError,)):
                yield
        except OSError as fault:
            where = fault.filename or self.root
            raise DataError(f"{self.title} cannot be read: {where}: {fault.strerror or fault}.") from fault

    def whole(self, part: str) -> Index:
        """Every row of a part, those left out included."""
        if part not in self._whole:
            with self._call("index"):
                found = self.inner.index(part)
            check_index(self.name, found)
            self._whole[part] = found
        return self._whole[part]

    def leave_out(self, part: str, rows: Sequence[int]) -> None:
        """Go on without these rows."""
        self._kept[part] = np.setdiff1d(np.arange(len(self.whole(part)), dtype=np.int64), np.asarray(rows, np.int64))
        self._indices.pop(part, None)

    def take_some(self, part: str, count: int) -> None:
        """Continue with this many of the rows that are used. They are drawn once, without looking at labels, so that a
        smaller number is a part of a larger one and a row that is left out moves no other."""
        whole, kept = len(self.whole(part)), self._kept.get(part)
        order = np.random.default_rng(0).permutation(whole)
        used = order if kept is None else order[np.isin(order, kept)]
        self._kept[part] = np.sort(used[:count])
        self._indices.pop(part, None)

    def index(self, part: str) -> Index:
        """The rows that are used."""
        whole, kept = self.whole(part), self._kept.get(part)
        if kept is None:
            return whole
        if part not in self._indices:
            self._indices[part] = Index(tuple(whole.items[r] for r in kept), whole.labels[kept], whole.class_names)
        return self._indices[part]

    def image(self, part: str, row: int) -> Image.Image:
        """The RGB image of a row that is used."""
        kept = self._kept.get(part)
        with plugin_call(self.name, "image", kind="dataset", passes=(OSError,)):
            return self.inner.image(part, row if kept is None else int(kept[row]))

    def class_split(self) -> ClassSplit:
        """Base and novel classes."""
        with self._call("class_split"):
            found = self.inner.class_split()
        _check_classes(self.name, found, len(self.whole("train").class_names))
        return found

    def content_hash(self, part: str) -> str:
        """Identifies the images behind the names."""
        with self._call("content_hash"):
            return self.inner.content_hash(part)

    def files_hash(self, part: str) -> str:
        """Changes when the image files may have changed."""
        with self._call("files_hash"):
            return self.inner.files_hash(part)

    def remarks(self) -> Sequence[str]:
        """What a person should see before a run."""
        with self._call("remarks"):
            return tuple(map(str, self.inner.remarks()))

    def require_files(self, part: str) -> None:
        """Fail before training if an image does not exist, where the dataset can say."""
        check = getattr(self.inner, "require_files", None)
        if check is not None:
            with self._call("require_files"):
                check(part)

    def labelled_rows(self, index: Index, base: Sequence[int], ratio: float) -> IntArray | None:
        """Rows that are labelled: those of the whole part, without the ones left out.

        A row that is missing must not change which of the others are labelled, so the draw is over all of them.
        """
        whole, kept = self.whole("train"), self._kept.get("train")
        with self._call("labelled_rows"):
            given = self.inner.labelled_rows(whole, base, ratio)
        if given is not None:
            given = _checked_rows(self.name, given, len(whole))
        if kept is None:
            return given
        if given is None:
            given = draw_rows(whole.labels, base, ratio)
        return np.flatnonzero(np.isin(kept, given))


def open_dataset(dataset_class: type[Dataset], root: Path) -> OpenedDataset:
    """The dataset below a data root; nothing is read yet."""
    with plugin_call(dataset_class.name, "__init__", kind="dataset"):
        return OpenedDataset(dataset_class(root))


def check_index(name: str, index: Any) -> None:
    """A PluginError that says what is wrong with an index."""

    def wrong(what: str) -> PluginError:
        return PluginError(f"The dataset '{name}' gives an index {what}.")

    if not isinstance(index, Index):
        raise wrong(f"that is no gcdbench.Index but a {type(index).__name__}")
    labels = index.labels
    if not isinstance(labels, np.ndarray) or labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        kind = f"{labels.dtype} {labels.shape}" if isinstance(labels, np.ndarray) else type(labels).__name__
        raise wrong(f"whose labels are {kind}; one whole number per row is needed")
    if len(labels) != len(index.items):
        raise wrong(f"with {len(index.items)} items and {len(labels)} labels")
    if not len(labels):
        raise wrong("without a single row")
    if not all(isinstance(item, str) for item in index.items):
        raise wrong("with an item that is no text")
    low, high = int(labels.min()), int(labels.max())
    if low < -1 or high >= len(index.class_names):
        odd = low if low < -1 else high
        raise wrong(f"with the label {odd}; labels are -1 (unknown) or 0 to {len(index.class_names) - 1}")


def _check_classes(name: str, split: Any, count: int) -> None:
    if not isinstance(split, ClassSplit):
        raise PluginError(f"The dataset '{name}' gives a class split that is no gcdbench.ClassSplit.")
    classes = (*split.base, *split.novel)
    odd = next((c for c in classes if not isinstance(c, int | np.integer) or not 0 <= c < count), None)
    if odd is not None:
        raise PluginError(f"The dataset '{name}' splits a class {odd!r}; classes are numbered 0 to {count - 1}.")
    if len(set(classes)) < len(classes):
        twice = next(c for c in classes if classes.count(c) > 1)
        raise PluginError(f"The dataset '{name}' lists class {twice} twice in its class split.")
    if not split.base:
        raise PluginError(f"The dataset '{name}' has no base class; at least one is needed.")


def _checked_rows(name: str, rows: Any, count: int) -> IntArray:
    found = np.asarray(rows)
    whole = found.ndim == 1 and (np.issubdtype(found.dtype, np.integer) or not len(found))
    if not whole or (len(found) and (found.min() < 0 or found.max() >= count)) or len(np.unique(found)) < len(found):
        raise PluginError(f"The dataset '{name}' must give different rows from 0 to {count - 1} as labelled_rows.")
    return found.astype(np.int64)
