"""Checkpoints: written atomically, checksummed, two generations, read back without executing anything.

`checkpoint/last.pt` is what `torch.save` writes, followed by one line with the SHA-256 of what is before it (torch
ignores that line). The one before it is kept as `checkpoint/previous.pt`, for the day the newest turns out damaged.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO, Any

import torch

from gcdbench.errors import GcdbenchError
from gcdbench.system.files import MACHINE, sweep, write_atomically
from gcdbench.system.plugin_call import out_of_memory
from gcdbench.training.lane_state import LaneState

FILE = "checkpoint/last.pt"
PREVIOUS = "checkpoint/previous.pt"
_MARK = b"\nsha256 "
_TRAILER = len(_MARK) + 64 + 1
_BLOCK = 1 << 20
_AGAIN = "Delete it or use --force to start the run again."


class _Damaged(Exception):
    """The file is not what was written."""


class _Hashing:
    """A stream that hashes what goes through it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.fault: BaseException | None = None

    def write(self, content: Any) -> int:
        """Hash and pass on; torch replaces what this raises (even Ctrl-C) by an error of its own, so it is kept."""
        try:
            self.digest.update(content)
            return self._stream.write(content)
        except BaseException as fault:
            self.fault = fault
            raise

    def flush(self) -> None:
        """Pass on."""
        self._stream.flush()


def write(path: Path, state: dict[str, Any], replaces: Path | None = None) -> None:
    """Write a state with its checksum; what was there is kept as ``replaces``."""

    def fill(stream: IO[bytes]) -> None:
        through = _Hashing(stream)
        try:
            torch.save(state, through)  # type: ignore[arg-type]
        except RuntimeError as fault:
            raise through.fault or fault from None
        stream.write(_MARK + through.digest.hexdigest().encode() + b"\n")

    def keep() -> None:
        if replaces is not None and path.is_file():
            os.replace(path, replaces)

    write_atomically(path, fill, keep)


def save(folder: Path, state: dict[str, Any]) -> None:
    """The run's new checkpoint; the one it replaces is kept."""
    write(folder / FILE, state, folder / PREVIOUS)


def load(folder: Path) -> dict[str, Any] | None:
    """The run's newest checkpoint, or None if it has none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return _checked(path, read(path))
    except _Damaged as fault:
        raise GcdbenchError(f"The checkpoint {path} is damaged ({fault}). {_AGAIN}") from fault


def restore(folder: Path, run_id: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest checkpoint of a run that is whole, or None; and a sentence for each that is not.

    A damaged file is set aside, so that it never takes the place of a whole one. Call it under the run's lock.
    """
    sweep((folder / FILE).parent)
    notes: list[str] = []
    for name in (FILE, PREVIOUS):
        path = folder / name
        if not path.is_file():
            continue
        try:
            state = _checked(path, read(path))
        except _Damaged as fault:
            os.replace(path, path.with_suffix(".damaged"))
            instead = "the one before it" if (folder / PREVIOUS).is_file() else "the beginning"
            notes.append(f"The checkpoint {path} is damaged ({fault}); the run resumes from {instead}.")
            continue
        if state["run"] != run_id:
            raise GcdbenchError(f"The checkpoint {path} belongs to the run {state['run']}, not to {run_id}. {_AGAIN}")
        return state, notes
    return None, notes


def read(path: Path) -> Any:
    """What a file holds, once its checksum has been compared; in main memory, whatever device it came from.

    Whoever loads a state copies it to where it belongs. Random states and step counts belong nowhere else.
    """
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        left = os.fstat(stream.fileno()).st_size - _TRAILER
        while left > 0 and (block := stream.read(min(_BLOCK, left))):
            digest.update(block)
            left -= len(block)
        trailer = stream.read()
    if left < 0 or not trailer.startswith(_MARK):
        raise _Damaged("it does not end as it should: torn, or written by an older gcdbench")
    if trailer != _MARK + digest.hexdigest().encode() + b"\n":
        raise _Damaged("its checksum does not match")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as fault:  # what a file of some other origin holds can make the reader raise almost anything
        if out_of_memory(fault) or (isinstance(fault, OSError) and fault.errno in MACHINE):
            raise
        first = (str(fault).splitlines() or [type(fault).__name__])[0]
        raise GcdbenchError(f"The checkpoint {path} cannot be read ({first}). {_AGAIN}") from fault


def _checked(path: Path, state: Any) -> dict[str, Any]:
    if not isinstance(state, dict) or not LaneState.known(state):
        raise GcdbenchError(f"The checkpoint {path} cannot be read (it is no checkpoint of a run). {_AGAIN}")
    return state
