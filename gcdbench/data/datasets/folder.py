"""A person's own images: a folder of class folders, or a CSV of path,label. No code needed.

Images without a label (in a folder called `unlabelled`, or with an empty label in the CSV) are the ones to sort;
every labelled image is then used as labelled. If every image has a label, the set is treated like a benchmark:
the first half of the classes is base, and half of the base images keep their label.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from gcdbench.config.sections import DataConfig
from gcdbench.contracts import ClassSplit, Index, IntArray
from gcdbench.data.datasets.files import (
    EXTENSIONS,
    FileDataset,
    leads_outside,
    list_classes,
    list_images,
    listing,
    make_index,
)
from gcdbench.errors import DataError, UsageError
from gcdbench.system.files import not_a_file

PROBE = 4096
"""Bytes at either end of a file that identify its content."""
UNLABELLED = ("unlabelled", "unlabeled", "_unlabelled", "_unlabeled")
UNSORTED = (
    "unsorted",
    "not sorted",
    "inbox",
    "new",
    "todo",
    "to sort",
    "misc",
    "various",
    "other",
    "others",
    "unknown",
)
"""Names of folders whose images are hardly one class."""
LISTED = 12
"""Classes, or kinds of files, that are named one by one."""


class ImageFolder(FileDataset):
    """Class folders or a CSV file; the data root is the folder (or the CSV file) itself."""

    name = "folder"
    title = "Image folder"
    layout = (
        "either  <data root>/class_name/*.jpg ...   and optionally <data root>/unlabelled/*.jpg ...\n"
        "or      <data root>/labels.csv (or --data-root FILE.csv) with the header path,label;\n"
        "        paths are relative to the CSV file, an empty label means unlabelled; the columns item,name of a\n"
        "        run's predictions.csv are read as path,label"
    )
    steps = (
        "Put your images into one folder per known class, and the images that are not sorted yet into a folder "
        "called 'unlabelled'; or write a CSV file with the columns path and label.",
        "Run `gcdbench data verify folder --data-root YOUR_FOLDER` to check the result.",
    )

    def read_part(self, part: str) -> tuple[Path, Index]:
        """All rows; there is no test part."""
        if part != "train":
            raise DataError("A folder of images has no test part; score the unlabelled rows (eval.rows=unlabelled).")
        if not self.root.exists():
            raise DataError(f"The folder {self.root} does not exist. Give your image folder or CSV with --data-root.")
        folder, index = self._from_csv(self._table) if self._table.is_file() else self._from_folders()
        if not len(index):
            loose = len(list_images(self.root)) if self.root.is_dir() else 0
            what = f"{loose} images lie outside class folders" if loose else "there are no images"
            raise DataError(f"In {self.root} {what}. Expected: {self.layout}")
        if (index.labels < 0).all():
            raise DataError(f"No image in {self.root} has a label; at least one known class is needed.")
        return folder, index

    def _from_folders(self) -> tuple[Path, Index]:
        names = [n for n in list_classes(self.root) if n.lower() not in UNLABELLED]
        items, labels = listing(self.root, enumerate(names))
        for name in list_classes(self.root):
            if name.lower() in UNLABELLED:
                found = [f"{name}/{n}" for n in list_images(self.root / name)]
                items += found
                labels += [-1] * len(found)
        return self.root, make_index(items, labels, names)

    def remarks(self) -> tuple[str, ...]:
        """The classes with their counts, files that are no images or in no class, and names that look like a slip."""
        folder, index = self._part("train")
        counts = np.bincount(index.labels[index.labels >= 0], minlength=len(index.class_names))
        listed = ", ".join(f"{name} ({n:,})" for name, n in zip(index.class_names[:LISTED], counts, strict=False))
        more = f" and {len(counts) - LISTED} more" if len(counts) > LISTED else ""
        said = [f"{len(counts)} classes: {listed}{more}; {int((index.labels < 0).sum()):,} images without a label."]
        if self._all_labelled:
            said.append(
                "No image is without a label, so there is nothing to sort: the set is treated like a benchmark whose "
                "first half of the classes is known. Images to be sorted belong into a folder called 'unlabelled', or "
                "have an empty label in the table."
            )
        odd = [name for name in index.class_names if name.lower().strip(" _-") in UNSORTED]
        if odd:
            said.append(
                f"The folder '{odd[0]}' counts as a class of its own. If its images are to be sorted, call it "
                "'unlabelled'."
            )
        groups = [name for name in index.class_names if re.fullmatch(r"novel \d+", name)]
        if groups:
            said.append(f"'{groups[0]}' is the name of a group that a run has found; it counts as a class here.")
        ignored = self._ignored(folder, set(index.items))
        return (*said, *([f"Ignored: {ignored}."] if ignored else []))

    def _ignored(self, folder: Path, items: set[str]) -> str:
        """Files that are no images by their names, and images in no class folder or no line of the table."""
        table = self._table.is_file()
        missed = len(set(list_images(folder)) - items)
        others = Counter(
            f.suffix or "a file without an extension"
            for f in (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
            if f.suffix.lower() not in EXTENSIONS and f.name[0] != "." and f != self._table
        )
        parts = [f"{count:,} {suffix}" for suffix, count in others.most_common(LISTED)]
        if missed:
            where = f"that {self._table.name} does not list" if table else "outside the class folders"
            parts.append(f"{missed:,} image{'s' if missed > 1 else ''} {where}")
        return ", ".join(parts)

    @property
    def _table(self) -> Path:
        return self.root if self.root.is_file() else self.root / "labels.csv"

    def _from_csv(self, path: Path) -> tuple[Path, Index]:
        try:
            with path.open(newline="", encoding="utf-8-sig") as stream:
                reader = csv.DictReader(stream, strict=True)
                header = list(reader.fieldnames or ())
                rows = list(reader)
        except (OSError, UnicodeDecodeError, csv.Error) as fault:
            raise DataError(f"The CSV file {path} cannot be read: {fault}.") from fault
        if {"item", "name"} <= set(header):  # the predictions.csv of a run
            rows = [{"path": row["item"], "label": row["name"]} if None not in row else row for row in rows]
        elif rows and not {"path", "label"} <= set(rows[0]):
            raise DataError(f"The CSV file {path} needs the header path,label; it has {','.join(map(str, rows[0]))}.")
        if len(set(header)) < len(header):
            raise DataError(f"The CSV file {path} has two columns of the same name: {','.join(header)}.")
        pairs: dict[str, str] = {}
        for number, row in enumerate(rows, 2):
            if None in row or None in row.values():
                raise DataError(f"Line {number} of {path} has more or fewer columns than the first line.")
            item, label = (row["path"] or "").strip(), (row["label"] or "").strip()
            if not item:
                raise DataError(f"Line {number} of {path} has no path.")
            if leads_outside(item):
                raise DataError(f"Line {number} of {path}: {item!r} lies outside {path.parent}.")
            if item in pairs:
                raise DataError(f"Line {number} of {path}: '{item}' is listed twice.")
            pairs[item] = label
        names = sorted({label for label in pairs.values() if label})
        number_of = {name: i for i, name in enumerate(names)}
        return path.parent, make_index(pairs, (number_of.get(label, -1) for label in pairs.values()), names)

    @cached_property
    def _all_labelled(self) -> bool:
        return bool((self.index("train").labels >= 0).all())

    def class_split(self) -> ClassSplit:
        """All named classes are base if some images are unlabelled, else the first half of them."""
        count = len(self.index("train").class_names)
        if not self._all_labelled:
            return ClassSplit(tuple(range(count)), ())
        base = max(1, count // 2)
        return ClassSplit(tuple(range(base)), tuple(range(base, count)))

    def labelled_rows(self, index: Index, base: Sequence[int], ratio: float) -> IntArray | None:
        """Every row with a label, if some rows have none."""
        if self._all_labelled:
            return None
        if ratio != DataConfig().label_ratio or len(base) < len(index.class_names):
            raise UsageError(
                f"In {self.root} the unlabelled images themselves say which rows are labelled: "
                "--label-ratio and --novel-ratio do not apply."
            )
        return np.flatnonzero(index.labels >= 0)

    def content_hash(self, part: str) -> str:
        """Size, first and last bytes of every file: another folder with the same names is another dataset."""
        digest = hashlib.sha256()
        for row in range(len(self.index(part))):
            path = self.path(part, row)
            try:
                if not_a_file(path) is not None:  # opening a pipe would wait without end
                    raise OSError
                with path.open("rb") as stream:
                    size = path.stat().st_size
                    digest.update(f"{size} ".encode() + stream.read(PROBE))
                    stream.seek(max(0, size - PROBE))
                    digest.update(stream.read(PROBE))
            except OSError:  # whoever needs the image says so
                digest.update(b"cannot be read ")
        return digest.hexdigest()
