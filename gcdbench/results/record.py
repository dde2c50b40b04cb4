"""The record of a finished run: what was run, on what, and what came out."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gcdbench.errors import GcdbenchError

SCHEMA = 1
"""Raised when the meaning of a field changes."""

PACKAGES = ("gcdbench", "torch", "timm", "numpy", "scipy", "scikit-learn", "pillow")


@dataclass(frozen=True)
class Record:
    """Contents of `record.json`. Shares are in percent, times in seconds, sizes in bytes."""

    schema: int
    run_id: str
    method: str
    dataset: str
    recipe: str
    seed: int
    dir: str
    metrics: dict[str, float]
    selected: dict[str, Any]
    """Rule, stage and epoch of the predictions that were scored."""
    config: dict[str, Any]
    sources: dict[str, str]
    """Where each config value came from."""
    presets: list[str]
    """Presets that were used, with where they were published."""
    protocol: dict[str, Any]
    fingerprint: str
    backbone: dict[str, Any]
    parameters: dict[str, int]
    """Trained and total number of parameters."""
    data: dict[str, Any]
    """Counts of rows and classes."""
    timings: dict[str, float]
    peak_memory: int
    device: str
    versions: dict[str, str]
    plugin: dict[str, str]
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide results."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


_KINDS = {
    "seed": int,
    "run_id": str,
    **dict.fromkeys(("metrics", "selected", "config", "protocol", "backbone", "data", "timings"), dict),
}
"""Fields that are used without asking, and what they must be."""


def read_record(path: Path) -> Record:
    """A record from disk; `dir` is where it is now."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("schema") != SCHEMA:
            raise GcdbenchError(f"{path} has schema {data.get('schema')}; this gcdbench reads schema {SCHEMA}.")
        record = Record(**{**data, "dir": str(path.parent)})
        for field_, kind in _KINDS.items():
            if not isinstance(getattr(record, field_), kind):
                raise ValueError(f"'{field_}' is not what it should be")
        return record
    except (OSError, ValueError, TypeError, AttributeError) as fault:
        raise GcdbenchError(
            f"The record {path} cannot be read: {fault}. `gcdbench run --force` repeats the run."
        ) from fault
