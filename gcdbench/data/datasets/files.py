"""What datasets of image files have in common: folder listings, reading an image, checking that files exist."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from PIL import Image

from gcdbench.contracts import Dataset, Index
from gcdbench.data.data_root import missing
from gcdbench.data.images import unreadable_image
from gcdbench.errors import BadImage, DataError
from gcdbench.system.files import not_a_file

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")


def list_classes(folder: Path) -> list[str]:
    """Sorted names of the sub-folders; hidden ones do not count."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def list_images(folder: Path) -> list[str]:
    """Image files below a folder, relative to it with forward slashes, folder by folder in sorted order."""
    found: list[str] = []
    for current, names in sorted(_walk(folder)):
        prefix = Path(current).relative_to(folder)
        kept = (n for n in sorted(names) if n.lower().endswith(EXTENSIONS) and not n.startswith("."))
        found += [(prefix / n).as_posix() for n in kept]
    return found


def _walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Folders with the names of their files. Links are followed, but never to a folder that holds the link itself:
    that would have no end, and would count images of other classes as images of this one."""
    for current, folders, names in os.walk(folder, followlinks=True):
        inside = os.path.realpath(current) + os.sep
        folders[:] = [n for n in folders if not inside.startswith(os.path.realpath(os.path.join(current, n)) + os.sep)]
        yield current, names


def listing(root: Path, classes: Iterable[tuple[int, str]]) -> tuple[list[str], list[int]]:
    """Items (relative to ``root``) and labels of class folders, in class order."""
    items: list[str] = []
    labels: list[int] = []
    for label, name in classes:
        names = list_images(root / name)
        items += [f"{name}/{n}" for n in names]
        labels += [label] * len(names)
    return items, labels


def to_rgb(image: Image.Image) -> Image.Image:
    """Any image as 8-bit RGB; deeper ones are scaled, since a plain conversion would clip them to white."""
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels are 32-bit numbers, which have no known range")
        return Image.fromarray((values // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, which have no known range")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def read_lines(path: Path) -> list[str]:
    """The lines of an annotation file, or a DataError that names it."""
    odd = not_a_file(path)
    if odd is not None:
        raise DataError(f"The annotation file {path} {odd}.")
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise DataError(f"The annotation file {path} cannot be read: {fault}.") from fault


def stat_hash(paths: Iterable[Path]) -> str:
    """Hashes of the sizes and of the modification times of files, `SIZES-TIMES`; one that is missing counts as such."""
    sizes, times = hashlib.sha256(), hashlib.sha256()
    for path in paths:
        try:
            facts = os.stat(path)
            sizes.update(f"{facts.st_size}\n".encode())
            times.update(f"{facts.st_mtime_ns}\n".encode())
        except OSError:
            sizes.update(b"missing\n")
    return f"{sizes.hexdigest()[:16]}-{times.hexdigest()[:16]}"


def open_rgb(path: Path) -> Image.Image:
    """An image file as RGB, or a DataError that names the file."""
    odd = not_a_file(path)
    if odd is not None:
        raise BadImage(f"The image {path} {odd}.")
    try:
        with Image.open(path) as image:
            return to_rgb(image)
    except Exception as fault:  # a damaged file can make a decoder raise almost anything
        raise unreadable_image(str(path), fault) from fault


class FileDataset(Dataset):
    """A dataset whose rows are image files; sub-classes say where each part's files are."""

    @cached_property
    def _parts(self) -> dict[str, tuple[Path, Index]]:
        return {}

    def read_part(self, part: str) -> tuple[Path, Index]:
        """Folder the items are relative to, and the index of a part."""
        raise DataError(f"{self.title} has no part '{part}'.")

    def _part(self, part: str) -> tuple[Path, Index]:
        if part not in self._parts:
            folder, index = self.read_part(part)
            _require_inside(folder, index.items)
            self._parts[part] = folder, index
        return self._parts[part]

    def index(self, part: str) -> Index:
        """Rows of a part; read once."""
        return self._part(part)[1]

    def path(self, part: str, row: int) -> Path:
        """The file of a row."""
        folder, index = self._part(part)
        return folder / index.items[row]

    def image(self, part: str, row: int) -> Image.Image:
        """The RGB image of a row."""
        return open_rgb(self.path(part, row))

    def files_hash(self, part: str) -> str:
        """Size and time of every file."""
        folder, index = self._part(part)
        return stat_hash(folder / item for item in index.items)

    def require_files(self, part: str) -> None:
        """Fail before training if an image that the annotations name does not exist."""
        folder, index = self._part(part)
        absent = [item for item in index.items if not os.path.isfile(folder / item)]
        if absent:
            raise missing(self, f"{len(absent)} of {len(index)} images do not exist, first {folder / absent[0]}")


def leads_outside(item: str) -> bool:
    """Whether a name of an image could lead out of the folder it is relative to. Links the user has made are his."""
    pure = PurePosixPath(item.replace("\\", "/"))
    return pure.is_absolute() or ".." in pure.parts or "\0" in item or bool(PureWindowsPath(item).drive)


def _require_inside(folder: Path, items: Iterable[str]) -> None:
    """Annotation files come from outside: no name in them may lead out of the folder of images."""
    for item in items:
        if leads_outside(item):
            raise DataError(f"An annotation file names the image {item!r}, which lies outside {folder}.")


def make_index(items: Iterable[str], labels: Iterable[int], names: Iterable[str]) -> Index:
    """An index from plain lists."""
    return Index(tuple(items), np.fromiter(labels, dtype=np.int64), tuple(names))
