"""One store on disk: a folder that appears whole or not at all, and is made by one process at a time."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcdbench.data.store.resumable_writer import NOTE
from gcdbench.errors import DataError, UsageError
from gcdbench.system.files import read_json, write_json
from gcdbench.system.locks import is_locked, locked

VARIABLE = "GCDBENCH_CACHE"
DESCRIPTION = "store.json"
SPARE = 0.02
"""Share of a store's size that must stay free on the disk besides."""
HELD_BYTES = 16 << 20
"""Bytes of a memory map that are read before their pages are given back."""

Announce = Callable[[str], None]


def cache_root(given: Path | None = None) -> Path:
    """Where stores live: the option, the environment variable, or the user's cache folder."""
    if given is not None:
        return given
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gcdbench"
    except RuntimeError as fault:  # no home, as in some containers
        raise UsageError(f"There is no home folder for stores: name one with --cache or {VARIABLE}.") from fault


def spoken_size(count: float) -> str:
    """`3.2 GB`, `140 MB`, `12 kB`."""
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{max(count, 1) / 1e3:.3g} kB"


class CannotStore(DataError):
    """There is no room for a store, or no permission."""


@dataclass(frozen=True)
class StoreFolder:
    """`<cache>/<kind>/<key>/`; the key is a hash of every fact that decides the content."""

    root: Path
    kind: str
    facts: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Sixteen hex digits over kind and facts."""
        text = json.dumps([self.kind, self.facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def path(self) -> Path:
        """Where the finished store is."""
        return self.root / self.kind / self.key

    def description(self) -> dict[str, Any] | None:
        """What the store says of itself; None if there is no finished one."""
        return read_description(self.path)

    def build(self, size: int, what: str, fill: Callable[[Path], Mapping[str, Any]], announce: Announce) -> None:
        """Let ``fill`` write the files and return facts about them; a store another process has made is kept.

        A fill that was killed may find what it had noted (`gcdbench.data.store.resumable_writer`) and continue from
        there. ``size`` is what ``what`` will take, in bytes: said before anything is written, refused if it does not
        fit.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock(what, announce):
                if self.description() is not None:
                    return
                self._sweep()
                self._require(size, what)
                announce(f"Writing {what}, about {spoken_size(size)}, to {self.path} (once).")
                self._fill(what, fill)
        except OSError as fault:
            raise CannotStore(
                f"{what[:1].upper()}{what[1:]} cannot be written to {self.path}: {fault.strerror or fault}. "
                f"Choose another folder with --cache or {VARIABLE}."
            ) from fault

    def _fill(self, what: str, fill: Callable[[Path], Mapping[str, Any]]) -> None:
        temporary = self._partial
        try:
            temporary.mkdir(mode=0o700, exist_ok=True)
            found = fill(temporary)
            size = sum(entry.stat().st_size for entry in temporary.iterdir())
            description = {"kind": self.kind, "what": what, "facts": dict(self.facts), "bytes": size, **found}
            write_json(temporary / DESCRIPTION, description)
            os.chmod(temporary, 0o755)
            os.rename(temporary, self.path)
        except BaseException as fault:
            if isinstance(fault, Exception) or not (temporary / NOTE).is_file():
                shutil.rmtree(temporary, ignore_errors=True)
            raise

    @property
    def _partial(self) -> Path:
        return self.path.parent / f".{self.key}.partial.tmp"

    def _require(self, size: int, what: str) -> None:
        there = sum(p.stat().st_size for p in self._partial.iterdir()) if self._partial.is_dir() else 0
        free = shutil.disk_usage(self.path.parent).free + there
        if size * (1 + SPARE) > free:
            raise CannotStore(
                f"{what[:1].upper()}{what[1:]} would take {spoken_size(size)}, but {self.path.parent} has only "
                f"{spoken_size(free)} free. Choose another folder with --cache or {VARIABLE}."
            )

    def _sweep(self) -> None:
        """Under the lock: leftovers of killed builders, and a finished folder whose description is damaged."""
        for left in self.path.parent.glob(f".{self.key}.*.tmp"):
            if left != self._partial or not (left / NOTE).is_file():
                shutil.rmtree(left, ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def _lock(self, what: str, announce: Announce) -> AbstractContextManager[None]:
        """Held while building. Where the system has no such locks, the final rename alone keeps stores whole."""
        path = self.path.parent / f".{self.key}.lock"
        return locked(path, lambda who: announce(f"{who[:1].upper()}{who[1:]} is writing {what}; waiting for it."))


def read_description(path: Path) -> dict[str, Any] | None:
    """The description of the finished store in ``path``; None if there is none that can be read."""
    try:
        found = read_json(path / DESCRIPTION)
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and found.get("kind") == path.parent.name and isinstance(found.get("bytes"), int)
    return found if whole else None


def list_stores(root: Path) -> list[dict[str, Any]]:
    """Descriptions of all finished stores, with their key; what is no store is passed over."""
    found = []
    for path in sorted(root.glob(f"*/*/{DESCRIPTION}")):
        description = read_description(path.parent)
        if description is not None:
            known = {name: description.get(name) for name in ("kind", "bytes", "facts")}
            found.append({"key": path.parent.name, **known, "what": str(description.get("what"))})
    return found


def leftovers(root: Path) -> list[Path]:
    """What killed processes have left of stores they were writing; not what is being written now."""
    return [path for path in sorted(root.glob("*/.*.tmp")) if path.is_dir() and not _locked(path)]


def _locked(temporary: Path) -> bool:
    lock = temporary.parent / f".{temporary.name.split('.')[1]}.lock"
    return is_locked(lock)


def delete_store(root: Path, store: Mapping[str, Any]) -> None:
    """Delete a store that `list_stores` found; its description goes first, so that no one reads half of it."""
    path = root / store["kind"] / store["key"]
    try:
        (path / DESCRIPTION).unlink(missing_ok=True)
        shutil.rmtree(path)
    except OSError as fault:
        raise DataError(f"The store {path} cannot be deleted: {fault.strerror or fault}.") from fault


class ReadPages:
    """Pages of a memory map that were read. They are given back now and then: they stay in the system's cache, but not
    in this process's memory, which therefore does not grow with the number of images."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._bytes = 0

    def add(self, count: int) -> None:
        """This many bytes are about to be read. Whoever reads pages that were just given back reads them again."""
        self._bytes += count
        if self._bytes > HELD_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            self._bytes = 0
            self._memory.madvise(mmap.MADV_DONTNEED)


def write_array(path: Path, values: NDArray[Any]) -> str:
    """Write an array; its checksum."""
    np.save(path, values, allow_pickle=False)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_array(path: Path, checksum: object) -> NDArray[Any]:
    """An array whose checksum is known."""
    if hashlib.sha256(path.read_bytes()).hexdigest() != checksum:
        raise damaged(path.parent, f"the checksum of {path.name} does not match")
    found: NDArray[Any] = np.load(path, allow_pickle=False)
    return found


def require_size(path: Path, wanted: int) -> None:
    """A file must have the size it was written with."""
    there = path.stat().st_size
    if there != wanted:
        raise damaged(path.parent, f"{path.name} has {spoken_size(there)} instead of {spoken_size(wanted)}")


def damaged(path: Path, what: str) -> DataError:
    """The error for a store whose content is not what was written."""
    return DataError(f"The store {path} is damaged: {what}. Delete this folder; the next run makes it again.")
