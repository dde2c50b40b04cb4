"""`metrics.jsonl`: one JSON line per epoch. Always on; records, reports and resuming read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gcdbench.contracts import Tracker
from gcdbench.system.files import append_line, parse_json, write_text

FILE = "metrics.jsonl"


class JsonlTracker(Tracker):
    """Appends to `metrics.jsonl` in the run directory."""

    name = "jsonl"

    def start(self, folder: Path, config: Mapping[str, Any], epochs_done: int, steps_done: int) -> None:
        """Drop epochs that were written after the checkpoint the run resumes from."""
        self.path = folder / FILE
        self.kept = 0
        if self.path.is_file():
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
            good = [line for line in lines[:epochs_done] if _is_line(line)]
            self.kept = len(good)
            write_text(self.path, "".join(line + "\n" for line in good))

    def epoch(self, number: int, line: Mapping[str, Any]) -> None:
        """Append the epoch."""
        append_line(self.path, json.dumps(line))


def _is_line(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except ValueError:
        return False
