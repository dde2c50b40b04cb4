"""A dataset with its split, opened for a run, and whether its image files are still those the run began with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.config.sections import DataConfig
from gcdbench.contracts import ClassSplit, Dataset, Index, IntArray
from gcdbench.data.checked_dataset import OpenedDataset, open_dataset
from gcdbench.data.splits import Split, index_hash, make_split, remap, row_order
from gcdbench.data.store.store_folder import cache_root
from gcdbench.data.store.unreadable_scan import bad_images
from gcdbench.errors import DataError, UsageError

Tick = Callable[[str, int, int], None]
"""Called with what some long work is, how much of it is done, and of how much."""


class DataChanged(DataError):
    """The image files are not those the run began with: what it has learnt from them since must not be kept."""


@dataclass(frozen=True)
class FileState:
    """Hash of the image files of each part when the run was prepared; see `Dataset.files_hash`."""

    files: dict[str, str]

    @staticmethod
    def of(dataset: Dataset, parts: tuple[str, ...]) -> FileState:
        """Of the files as they are now."""
        return FileState({part: dataset.files_hash(part) for part in parts})


def compare(before: FileState, now: FileState, title: str, note: Callable[[str], None]) -> None:
    """Stop if files have another size than before. Other times alone are noted: copies of the same files have those."""
    for part, was in before.files.items():
        found = now.files.get(part, "")
        if was == found or not was or not found:
            continue
        if _sizes(was) != _sizes(found):
            raise DataChanged(
                f"The image files of {title} ({part}) have changed since this run began: its result would belong to "
                "neither data set. Put the files back and give the same command again, or start again with --force."
            )
        note(f"The image files of {title} ({part}) have other times than when this run began, but the same sizes.")


def _sizes(files_hash: str) -> Any:
    """The part of the hash about sizes, where the dataset keeps it apart; else all of it."""
    return files_hash.partition("-")[0]


@dataclass(frozen=True)
class OpenedData:
    """A dataset with its split, and the true targets that only evaluators see."""

    dataset: OpenedDataset
    index: Index
    split: Split
    test: Index | None
    """Index of the test part, if the run looks at it."""
    state: FileState
    """The image files as they were when the data was opened."""
    bad: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Per part the rows of the whole data set that were left out because their image cannot be read, and why."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts the run looks at."""
        return ("train",) if self.test is None else ("train", "test")

    def check_files(self, parts: tuple[str, ...], note: Callable[[str], None]) -> None:
        """Stop if files of these parts have changed since the data was opened."""
        read = tuple(part for part in self.state.files if part in parts)
        if read:
            before = FileState({part: self.state.files[part] for part in read})
            compare(before, FileState.of(self.dataset, read), self.dataset.title, note)

    def bad_items(self) -> list[tuple[str, str]]:
        """Name and reason of every image that was left out."""
        names = {part: self.dataset.whole(part).items for part in self.bad}
        return [(names[part][row], why) for part, rows in self.bad.items() for row, why in rows.items()]

    @property
    def _indices(self) -> dict[str, Index]:
        return {"train": self.index} | ({} if self.test is None else {"test": self.test})

    @cached_property
    def hash(self) -> str:
        """Hash of every index the run looks at."""
        return "+".join(index_hash(index, self.dataset.content_hash(part)) for part, index in self._indices.items())

    @cached_property
    def order(self) -> dict[str, IntArray]:
        """Per part the row of each number under which methods know its rows."""
        return {part: row_order(index) for part, index in self._indices.items()}

    @cached_property
    def numbers(self) -> IntArray:
        """The number under which methods know each training row."""
        return np.argsort(self.order["train"])

    @cached_property
    def numbered(self) -> Split:
        """The split under the numbers that methods see."""
        split = self.split
        labelled, unlabelled = (np.sort(self.numbers[rows]) for rows in (split.labelled, split.unlabelled))
        target = split.target[self.order["train"]]
        return dataclasses.replace(split, labelled=labelled, unlabelled=unlabelled, target=target)

    def by_row(self, part: str, numbers: IntArray) -> IntArray:
        """Where among these numbers the rows of the dataset stand, in its order."""
        return np.argsort(self.order[part][numbers], kind="stable")

    def test_target(self) -> IntArray:
        """True targets of the test rows."""
        assert self.test is not None
        return remap(self.test.labels, ClassSplit(self.split.base, self.split.novel))


def open_data(
    dataset_class: type[Dataset],
    root: Path,
    config: DataConfig,
    with_test: bool = False,
    cache: Path | None = None,
    tick: Tick | None = None,
) -> OpenedData:
    """Read index and split. Images are not opened, unless those that cannot be read are to be left out."""
    dataset = open_dataset(dataset_class, root)
    bad: dict[str, dict[int, str]] = {}
    parts = ("train", "test") if with_test else ("train",)
    for part in parts:
        dataset.index(part)
        if config.on_bad_image == "skip":
            bad[part] = _leave_out(dataset, part, cache_root(cache), tick)
        else:
            dataset.require_files(part)
    if config.images is not None:
        _take_some(dataset, config.images)
    index, test = dataset.index("train"), dataset.index("test") if with_test else None
    if test is not None and test.class_names != index.class_names:
        raise DataError(
            f"The class names of {dataset.title} are not the same in its training part ({len(index.class_names)}) and "
            f"its test part ({len(test.class_names)}): a label must mean the same class in both."
        )
    try:
        split = make_split(dataset, index, config)
    except DataError as fault:
        if not bad.get("train"):
            raise
        raise DataError(f"{fault} {len(bad['train'])} images that cannot be read were left out.") from fault
    return OpenedData(dataset, index, split, test, FileState.of(dataset, parts), bad)


def _take_some(dataset: OpenedDataset, count: int) -> None:
    there = len(dataset.index("train"))
    if count > there:
        raise UsageError(f"data.images is {count:,}, but {dataset.title} has only {there:,} training images.")
    if count < there:
        dataset.take_some("train", count)


def _leave_out(dataset: OpenedDataset, part: str, cache: Path, tick: Tick | None) -> dict[int, str]:
    """Go on without the images of a part that cannot be read."""
    name = f"looking for {part} images that cannot be read"
    bad = bad_images(cache, dataset, part, None if tick is None else lambda done, all_: tick(name, done, all_))
    if len(bad) == len(dataset.index(part)):
        raise DataError(f"Not one image of {dataset.title} ({part}) can be read; the first: {next(iter(bad.values()))}")
    if bad:
        dataset.leave_out(part, list(bad))
    return bad
