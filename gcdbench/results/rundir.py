"""The directory of one run: `config.json record.json metrics.jsonl predictions.npz checkpoint/ log.txt`."""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from gcdbench.contracts import Prediction
from gcdbench.files import write_atomically, write_json, write_text


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

    def clear(self) -> None:
        """Forget an earlier run of the same id."""
        if self.path.exists():
            self.record_file.unlink(missing_ok=True)
            shutil.rmtree(self.path)

    def open(self, config: dict[str, Any]) -> None:
        """Make the directory and write the config."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "config.json", config)

    def log(self, message: str) -> None:
        """Append a line with the time to log.txt."""
        with (self.path / "log.txt").open("a", encoding="utf-8") as stream:
            stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {message}\n")

    def epochs(self) -> list[dict[str, Any]]:
        """What metrics.jsonl holds."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return []
        found = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # a process that was killed may leave half a line
                break
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

        write_atomically(self.path / "predictions.npz", write)

    def write_table(self, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
        """`predictions.csv`: the same for a person, with file and class names."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
        write_text(self.path / "predictions.csv", text.getvalue())
