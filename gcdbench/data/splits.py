"""The GCD split of a training set: base and novel classes, labelled and unlabelled rows, target numbers.

The labelled subset is the published one, bit for bit: a legacy numpy draw with seed 0 over the base-class rows
in file order. It is uniform over rows, not stratified by class, and does not depend on the run's seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcdbench.config.sections import DataConfig
from gcdbench.contracts import ClassSplit, Dataset, Index, IntArray
from gcdbench.errors import DataError, UsageError


@dataclass(frozen=True)
class Split:
    """Which rows of the training set are labelled, and every row's target."""

    base: tuple[int, ...]
    """Class ids of the base classes; their order numbers the targets 0, 1, ..."""
    novel: tuple[int, ...]
    """Class ids of the novel classes, whose targets follow."""
    labelled: IntArray
    """Row numbers, sorted."""
    unlabelled: IntArray
    """Row numbers, sorted."""
    target: IntArray
    """True target of every row; -1 where it is unknown."""

    @property
    def num_classes(self) -> int:
        """Base and novel classes together."""
        return len(self.base) + len(self.novel)

    @property
    def is_labelled(self) -> NDArray[np.bool_]:
        """Whether each row is labelled."""
        mask = np.zeros(len(self.target), dtype=bool)
        mask[self.labelled] = True
        return mask

    @property
    def visible(self) -> IntArray:
        """Target of each labelled row, -1 elsewhere: all that a method may know."""
        return np.where(self.is_labelled, self.target, -1)

    @property
    def complete(self) -> bool:
        """Whether the true class of every row is known, so that predictions can be scored."""
        return bool((self.target >= 0).all())

    def hash(self) -> str:
        """Sixteen hex digits over classes and rows."""
        digest = hashlib.sha256()
        for part in (self.base, self.novel, self.labelled, self.unlabelled):
            digest.update(np.asarray(part, dtype="<i8").tobytes() + b"|")
        return digest.hexdigest()[:16]


def index_hash(index: Index, content: str = "") -> str:
    """Sixteen hex digits over the names and labels of all rows (and what the dataset says of their content)."""
    digest = hashlib.sha256("\n".join(index.items).encode("utf-8", "surrogateescape") + content.encode())
    digest.update(np.asarray(index.labels, dtype="<i8").tobytes())
    return digest.hexdigest()[:16]


def row_order(index: Index) -> IntArray:
    """The row of each number under which methods know the rows of an index.

    Files are often sorted by class: a row's place would give away its hidden label. So methods see rows in a fixed
    random order, under the numbers 0, 1, ... of that order. It depends on the names of the rows alone: labels, of which
    some are hidden, must not change what a method sees.
    """
    digest = hashlib.sha256("\n".join(index.items).encode("utf-8", "surrogateescape")).digest()
    return np.random.RandomState(int.from_bytes(digest[:4], "big")).permutation(len(index)).astype(np.int64)


def draw_labelled(count: int, ratio: float) -> IntArray:
    """Positions of the labelled rows among ``count`` base-class rows, in drawing order."""
    # The published code seeds numpy's legacy stream with 0 right before this one call.
    return np.random.RandomState(0).choice(count, replace=False, size=int(ratio * count)).astype(np.int64)


def draw_rows(labels: IntArray, base: Sequence[int], ratio: float) -> IntArray:
    """The labelled ones among all rows, in drawing order."""
    candidates = np.flatnonzero(np.isin(labels, base))
    return candidates[draw_labelled(len(candidates), ratio)] if len(candidates) else candidates


def cut_base(split: ClassSplit, novel_ratio: float | None) -> ClassSplit:
    """Raise the share of novel classes: the end of the base list moves in front of the novel list."""
    if novel_ratio is None:
        return split
    total = len(split.base) + len(split.novel)
    keep = round(total * (1 - novel_ratio))
    if keep == len(split.base) + 1:  # the published share itself, written with fewer digits (341 of 683)
        keep = len(split.base)
    if keep > len(split.base):
        least = len(split.novel) / total
        raise UsageError(
            f"data.novel_ratio is {novel_ratio}, but {len(split.novel)} of {total} classes are novel already: "
            f"it can only be raised, from {least:.2f} upwards."
        )
    if keep < 1:
        raise UsageError(f"data.novel_ratio is {novel_ratio}, which leaves no base class.")
    return ClassSplit(split.base[:keep], split.base[keep:] + split.novel)


def remap(labels: IntArray, split: ClassSplit) -> IntArray:
    """Class ids as targets: base classes in list order, then novel ones; unknown stays -1."""
    table = {cls: target for target, cls in enumerate((*split.base, *split.novel))}
    return np.array([table.get(int(label), -1) for label in labels], dtype=np.int64)


def make_split(dataset: Dataset, index: Index, config: DataConfig) -> Split:
    """The split of a dataset's training rows."""
    classes = cut_base(dataset.class_split(), config.novel_ratio)
    given = dataset.labelled_rows(index, classes.base, config.label_ratio)
    if given is None:
        given = draw_rows(index.labels, classes.base, config.label_ratio)
    labelled = np.sort(np.asarray(given, dtype=np.int64))
    if not np.isin(index.labels[labelled], classes.base).all():
        raise DataError(f"{dataset.name}: a row that is labelled belongs to no base class.")
    unlabelled = np.setdiff1d(np.arange(len(index), dtype=np.int64), labelled)
    if len(unlabelled) == 0:
        raise DataError(f"{dataset.name}: every row is labelled, so there is nothing to discover.")
    return Split(classes.base, classes.novel, labelled, unlabelled, remap(index.labels, classes))
