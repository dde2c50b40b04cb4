"""The directory of one run: `config.json record.json metrics.jsonl predictions.npz checkpoint/ log.txt`."""

from __future__ import annotations

import csv
import io
import shutil
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import numpy as np

from gcdbench.contracts import Prediction
from gcdbench.records.record import PREDICTIONS
from gcdbench.system.files import parse_json, read_json, sweep, write_atomically, write_json, write_text
from gcdbench.system.locks import Wait, holder, is_locked, locked

PLACES = "places.json"
"""Folders of this machine; no part of the run's identity or record."""
FAILURE = "failed.json"
"""What a run leaves that has ended by a fault of its own."""


class RunDirectory:
    """Files of one run. A run without `record.json` is unfinished."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def record_file(self) -> Path:
        """Written last."""
        return self.path / "record.json"

    @property
    def finished(self) -> bool:
        """Whether the run has a record."""
        return self.record_file.is_file()

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is something to resume from."""
        return any((self.path / "checkpoint" / name).is_file() for name in ("last.pt", "previous.pt"))

    @property
    def status(self) -> str:
        """What would be done: `finished` is shown, `unfinished` resumed, `new` and `failed` are run."""
        if self.finished:
            return "finished"
        if self.failure is not None:
            return "failed"
        return "unfinished" if self.has_checkpoint else "new"

    @property
    def is_run(self) -> bool:
        """Whether it has been described as a run, and is still there."""
        return (self.path / "config.json").is_file()

    @property
    def _lock_file(self) -> Path:
        return self.path.parent / f".{self.path.name}.lock"

    def lock(self, wait: Wait) -> AbstractContextManager[None]:
        """Held by the one process that works on the run; ``wait`` receives who that is, if it is another process."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return locked(self._lock_file, wait, remove=True)

    @property
    def worker(self) -> str | None:
        """The process that works on the run now, if one does: `process 4711 on host`."""
        path = self._lock_file
        return holder(path) if path.is_file() and is_locked(path) else None

    def clear(self) -> None:
        """Forget an earlier run of the same id."""
        self.record_file.unlink(missing_ok=True)
        for entry in self.path.iterdir():  # not the folder itself, which may be a link to another disk
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def open(self) -> None:
        """Make the directory; what a killed process has left half-written there goes. Call it under the lock."""
        self.path.mkdir(parents=True, exist_ok=True)
        sweep(self.path)

    def write_config(self, config: dict[str, Any]) -> None:
        """From now on this is a run."""
        write_json(self.path / "config.json", config)

    def remember_root(self, root: Path) -> None:
        """Where the run found its data: reports look there again."""
        write_json(self.path / PLACES, {"data_root": str(root.absolute())})

    @property
    def data_root(self) -> Path | None:
        """Where the run found its data, if that was noted and is still there."""
        try:
            root = Path(read_json(self.path / PLACES)["data_root"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return root if root.is_dir() else None

    def write_skipped(self, rows: Iterable[tuple[str, str]]) -> None:
        """`skipped.csv`: images that were left out because they cannot be read."""
        write_text(self.path / "skipped.csv", _csv(("item", "reason"), rows))

    @property
    def failure(self) -> str | None:
        """Why the run's last attempt failed, if that was its own fault."""
        try:
            return str(read_json(self.path / FAILURE)["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_failure(self, reason: str) -> None:
        """The run cannot be finished as it is: for whoever decides whether to try again."""
        write_json(self.path / FAILURE, {"reason": reason, "time": time.strftime("%Y-%m-%d %H:%M:%S")})

    def failed_after(self, other: Path) -> bool:
        """Whether it has failed since another file was written."""
        try:
            return (self.path / FAILURE).stat().st_mtime >= other.stat().st_mtime
        except OSError:
            return False

    def forget_failure(self) -> None:
        """It is tried again."""
        (self.path / FAILURE).unlink(missing_ok=True)

    def log(self, message: str) -> None:
        """Append a line with the time to log.txt."""
        with (self.path / "log.txt").open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {message}\n")

    def epochs(self) -> list[dict[str, Any]]:
        """What metrics.jsonl holds."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return []
        found = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                values = parse_json(line)
            except ValueError:  # a process that was killed may leave half a line
                break
            if not isinstance(values, dict):
                break
            found.append(values)
        return found

    def write_predictions(self, rows: np.ndarray, prediction: Prediction, truth: np.ndarray | None) -> None:
        """Row numbers, clusters, confidences and base classes per branch (and the truth where it is known)."""
        arrays: dict[str, np.ndarray] = {"row": rows, "cluster": prediction.cluster}
        if prediction.confidence is not None:
            arrays["confidence"] = prediction.confidence
        arrays.update({f"base_{name}": values for name, values in prediction.base.items()})
        if truth is not None:
            arrays["target"] = truth

        def write(stream: IO[bytes]) -> None:
            np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]

        write_atomically(self.path / PREDICTIONS, write)

    def write_table(self, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
        """`predictions.csv`: the same for a person, with file and class names."""
        write_text(self.path / "predictions.csv", _csv(header, rows))


def _csv(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
