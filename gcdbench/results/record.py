"""The record of a finished run: what was run, on what, and what came out.

`record.schema.json` beside this file is the written form of the schema; `gcdbench results --schema` prints it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from gcdbench.errors import GcdbenchError

SCHEMA = 2
"""Raised when a field is added or the meaning of one changes. Version 1 is read and completed."""


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
    finished: str
    """When the record was written, ISO 8601 in UTC; empty if unknown."""
    metrics: dict[str, float]
    evaluators: dict[str, Any]
    """Per evaluator its version and the names of its metrics."""
    selected: dict[str, Any]
    """Rule, stage and epoch of the predictions that were scored."""
    config: dict[str, Any]
    sources: dict[str, str]
    """Where each config value came from."""
    chosen: list[str]
    """Config keys whose value is not the one the recipe prescribes for this dataset and backbone."""
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
    """Seconds per phase, summed over all processes that worked on the run."""
    peak_memory: int
    flops_per_step: dict[str, int] | None
    """Floating-point operations of one training step: the trunk's and the method's; None if they were not counted."""
    device: str
    world_size: int
    """Processes that trained together."""
    versions: dict[str, str]
    plugin: dict[str, str]
    git: dict[str, Any]
    """Commit and cleanliness of the source of the core and of the plugin; null where it is not under git."""
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


_BY_HAND = ("--set", "command line", "config file")
"""How sources of values begin that somebody chose for this run (schema 1 has no field for them)."""


def _from_version_1(data: dict[str, Any]) -> dict[str, Any]:
    sources = data.get("sources", {})
    versions = data.get("protocol", {}).get("evaluators", {})
    return {
        **data,
        "schema": SCHEMA,
        "finished": "",
        "evaluators": {name: {"version": version, "metrics": []} for name, version in versions.items()},
        "chosen": sorted(k for k, s in sources.items() if s.startswith(_BY_HAND) and not k.startswith("backbone.")),
        "flops_per_step": None,
        "world_size": 1,
        "git": {"core": None, "plugin": None},
    }


def read_record(path: Path) -> Record:
    """A record from disk; `dir` is where it is now."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("it is not an object")
        if data.get("schema") == 1:
            data = _from_version_1(data)
        if data.get("schema") != SCHEMA:
            raise GcdbenchError(
                f"{path} has schema {data.get('schema')}; this gcdbench reads schemas 1 to {SCHEMA}. "
                "Use the gcdbench that wrote it, or repeat the run with `gcdbench run --force`."
            )
        record = Record(**{**data, "dir": str(path.parent)})
        _check_kinds(record)
        return record
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as fault:
        raise GcdbenchError(
            f"The record {path} cannot be read: {fault}. `gcdbench run --force` repeats the run."
        ) from fault


def _check_kinds(record: Record) -> None:
    """Every field must be of its annotated kind; what is inside is left to the schema."""
    hints = get_type_hints(Record)
    for entry in fields(record):
        value, hint = getattr(record, entry.name), hints[entry.name]
        if value is None and type(None) in getattr(hint, "__args__", ()):
            continue
        kind = get_origin(hint) or hint
        if kind not in (int, str, dict, list):
            kind = dict  # the one optional field
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"'{entry.name}' is not what it should be")
    numbers = {**record.metrics, **record.timings}
    bad = [k for k, v in numbers.items() if isinstance(v, bool) or not isinstance(v, int | float)]
    if bad:
        raise ValueError(f"'{bad[0]}' is not a number")
