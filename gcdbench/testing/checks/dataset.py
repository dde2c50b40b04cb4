"""Checks of datasets."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gcdbench.config.sections import DataConfig
from gcdbench.contracts import Index
from gcdbench.data.checked_dataset import OpenedDataset, open_dataset
from gcdbench.data.data_root import data_root
from gcdbench.data.splits import index_hash, make_split
from gcdbench.errors import DataError, PluginError
from gcdbench.prepare.opened_data import open_data
from gcdbench.prepare.pool import PoolOptions, training_pool
from gcdbench.testing.kit import Failed, NotApplicable, check
from gcdbench.testing.positions import CHEATS, chance
from gcdbench.toolbox.cluster_accuracy import v2

SAMPLE = 12
"""Images of each part that are opened."""


def _open(subject: Any) -> OpenedDataset:
    return open_dataset(subject.cls, data_root(subject.root))


def _parts(subject: Any) -> dict[str, Index]:
    """The parts that are there."""
    found = {}
    for part in ("train", "test"):
        try:
            found[part] = _open(subject).index(part)
        except PluginError:
            raise
        except DataError as fault:
            if part == "train" and subject.root is None:
                raise NotApplicable(f"its data is not here, say where with --data-root: {fault}") from fault
            if part == "train":
                raise
    return found


@check(
    "dataset",
    "describes-itself",
    explains="name, title and layout are set, and name is the registered one: errors and records use them.",
    fix="Set name, title and layout on the class.",
)
def describes_itself(subject: Any) -> None:
    """Texts on the class."""
    for attribute in ("name", "title", "layout"):
        if not isinstance(getattr(subject.cls, attribute, None), str):
            raise Failed(f"{attribute} is not set")
    if subject.cls.name != subject.name:
        raise Failed(f"it is registered as '{subject.name}' but calls itself '{subject.cls.name}'")


@check(
    "dataset",
    "missing-data",
    explains="Constructing the dataset touches no file, and files that are missing are reported as a "
    "gcdbench.errors.DataError.",
    fix="Read nothing in __init__; raise DataError with the file's name and what to do.",
    needs=("describes-itself",),
)
def missing_data_is_told(subject: Any) -> None:
    """An empty data root."""
    with tempfile.TemporaryDirectory() as empty:
        dataset = open_dataset(subject.cls, Path(empty) / "nothing")
        try:
            dataset.index("train")
            dataset.require_files("train")
        except PluginError as fault:
            raise Failed(f"without data: {fault}") from fault
        except DataError:
            return
    raise NotApplicable("the dataset needs no files below the data root")


@check(
    "dataset",
    "index",
    explains="The index names every row once, with a label from the classes or -1, without opening an "
    "image, and is the same each time.",
    fix="Build it from annotation files and sorted folder listings.",
    needs=("describes-itself",),
)
def index_is_sound(subject: Any) -> None:
    """Both parts, twice."""
    opened: list[Any] = []
    original = Image.open

    def watch(*arguments: Any, **more: Any) -> Any:
        opened.append(arguments[0])
        return original(*arguments, **more)

    Image.open = watch
    try:
        parts = _parts(subject)
    finally:
        Image.open = original
    if opened:
        raise Failed(f"index opens images ({opened[0]})")
    for part, index in parts.items():
        if len(set(index.items)) < len(index.items):
            raise Failed(f"two rows of {part} have the same name")
        if index_hash(index) != index_hash(_open(subject).index(part)):
            raise Failed(f"the index of {part} is not the same twice")


@check(
    "dataset",
    "split",
    explains="Base and novel classes are different classes of the index, and the labelled rows are rows of"
    " base classes.",
    fix="Return gcdbench.ClassSplit with class ids of the index; leave labelled_rows to the published"
    " draw unless the data says which rows are labelled.",
    needs=("index",),
)
def split_is_sound(subject: Any) -> None:
    """As a run splits it."""
    splits = []
    for _ in range(2):
        dataset = _open(subject)
        splits.append((make_split(dataset, dataset.index("train"), DataConfig()), dataset))
    (split, one), (again, other) = splits
    if not len(split.labelled):
        raise Failed("not one row is labelled")
    if split.hash() != again.hash():
        raise Failed("the split is not the same twice")
    if one.files_hash("train") != other.files_hash("train") or one.content_hash("train") != other.content_hash("train"):
        raise Failed("files_hash or content_hash is not the same twice")


@check(
    "dataset",
    "images",
    explains="Rows have an RGB image, the same each time (some of each part are opened; `data verify` opens all).",
    fix="Return a PIL image after .convert('RGB'); open the file of that very row.",
    needs=("index",),
)
def images_can_be_read(subject: Any) -> None:
    """Some rows of each part, twice."""
    for part, index in _parts(subject).items():
        one, two = _open(subject), _open(subject)
        for row in np.unique(np.linspace(0, len(index) - 1, SAMPLE).astype(int)):
            image = one.image(part, int(row))
            if not isinstance(image, Image.Image) or image.mode != "RGB":
                raise Failed(
                    f"image {row} of {part} is no RGB image but {getattr(image, 'mode', type(image).__name__)}"
                )
            if min(image.size) < 1:
                raise Failed(f"image {row} of {part} has no pixels")
            if image.tobytes() != two.image(part, int(row)).tobytes():
                raise Failed(f"image {row} of {part} is not the same twice")


class _NoImages:
    """In place of a source of tokens: whoever goes by positions needs none."""


@check(
    "dataset",
    "position",
    explains="Where a row stands says nothing about its class: answers by the numbers or the order of rows, which"
    " methods see, are no better than chance.",
    fix="Nothing in the dataset: gcdbench shuffles rows by their names. Give every row a name of its own, and report"
    " a failure.",
    needs=("split",),
)
def position_says_nothing(subject: Any) -> None:
    """Methods that cheat by position, on the pools that methods get."""
    parts = _parts(subject)
    with_test = "test" in parts and len(parts["test"]) > 0
    data = open_data(subject.cls, data_root(subject.root), DataConfig(), with_test)
    if not len(data.split.labelled):
        raise NotApplicable("not one row is labelled")
    if not data.split.complete:
        raise NotApplicable("some rows have no known class, so it cannot be known whether an answer is right")
    num_base, classes = len(data.split.base), data.split.num_classes
    judged = 0
    for rows in ("unlabelled", "test") if with_test else ("unlabelled",):
        pool = training_pool(data, _NoImages(), PoolOptions(64), rows)  # type: ignore[arg-type]
        asked = pool.queries.index
        target = data.numbered.target[asked] if rows == "unlabelled" else data.test_target()[data.order["test"]]
        for what, cheat in CHEATS.items():
            answer = cheat(pool, classes)
            limit = chance(target, answer, num_base)
            reached = v2(target, answer, num_base).all
            if reached > limit:
                raise Failed(
                    f"by {what} alone, {100 * reached:.1f} % of the {rows} rows can be guessed; chance gives at most "
                    f"{100 * limit:.1f} %"
                )
            judged += limit < 1
    if not judged:
        raise NotApplicable("there are too few rows to tell a good answer from chance")


@check(
    "dataset",
    "changes",
    explains="files_hash or content_hash is not empty, so that changed images are noticed: stores are made again, "
    "and a run that has begun is refused.",
    fix="Derive the dataset from gcdbench.FileDataset, or return sizes and times of the files from files_hash.",
    needs=("index", "split"),
)
def changes_are_noticed(subject: Any) -> None:
    """Only images below the data root can change: those that ship with a package do not."""
    data = open_dataset(subject.cls, data_root(subject.root))
    if data.files_hash("train") or data.content_hash("train"):
        return
    with tempfile.TemporaryDirectory(prefix="gcdbench-empty-") as empty:
        try:
            elsewhere = len(open_dataset(subject.cls, Path(empty)).index("train"))
        except (DataError, PluginError):
            raise Failed("files_hash and content_hash are empty: changed images would give the old results") from None
    if elsewhere:
        raise NotApplicable("its images are not below the data root, so they do not change")
