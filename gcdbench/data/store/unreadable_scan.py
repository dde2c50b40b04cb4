"""Which images of a part cannot be read: found out once, by decoding all of them, and kept in the cache."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL

from gcdbench.contracts import Dataset
from gcdbench.data.formats.decoding import unreadable
from gcdbench.data.splits import index_hash
from gcdbench.data.store.store_folder import CannotStore, StoreFolder
from gcdbench.system.files import read_json, write_json

FILE = "unreadable.json"
_PERMISSION = os.strerror(errno.EACCES)


def bad_images(
    root: Path, dataset: Dataset, part: str, tick: Callable[[int, int], None] | None = None
) -> dict[int, str]:
    """Rows whose image cannot be used, each with the reason."""
    content, files = dataset.content_hash(part), dataset.files_hash(part)
    if not (content or files):  # nothing says whether the images are still the same ones
        return unreadable(dataset, part, tick)
    facts = {
        "dataset": dataset.name,
        "part": part,
        "index": index_hash(dataset.index(part), content),
        "files": files,
        "pillow": PIL.__version__,
    }
    store = StoreFolder(root, "scans", facts)
    found = _read(store)
    if found is not None:
        return found
    shutil.rmtree(store.path, ignore_errors=True)  # damaged, if it is there at all
    fresh = unreadable(dataset, part, tick)
    if any(_PERMISSION in reason for reason in fresh.values()):  # which changes neither size nor time of a file
        return fresh

    def fill(folder: Path) -> dict[str, Any]:
        write_json(folder / FILE, {str(row): reason for row, reason in fresh.items()})
        return {"unreadable": len(fresh)}

    try:
        what = f"the list of images of {dataset.title} ({part}) that cannot be read"
        store.build(sum(map(len, fresh.values())) + 100, what, fill, lambda text: None)
    except CannotStore:
        pass  # it is looked for again next time
    return fresh


def _read(store: StoreFolder) -> dict[int, str] | None:
    if store.description() is None:
        return None
    try:
        content = read_json(store.path / FILE)
        return {int(row): str(reason) for row, reason in content.items()}
    except (OSError, ValueError, AttributeError):  # damaged: looked for again
        return None
