"""The record of a finished run: what was run, on what, and what came out.

`record.schema.json` beside this file is the written form of the schema; `gcdbench results --schema` prints it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from gcdbench.config.protocol import fingerprint_of
from gcdbench.errors import GcdbenchError
from gcdbench.system.files import read_json

SCHEMA = 5
"""Raised when a field is added or the meaning of one changes. Earlier versions are read and completed."""


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
    hashes: dict[str, str] | None
    """SHA-256 of `predictions.npz` and of the metrics as they were written; None in earlier schemas."""
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
    k_estimate: dict[str, Any] | None
    """What the K estimator found and how, if the number of classes was estimated."""
    timings: dict[str, float]
    """Seconds per phase, summed over all processes that worked on the run."""
    peak_memory: int
    flops_per_step: dict[str, int] | None
    """Floating-point operations of one training step: the trunk's and the method's; None if they were not counted."""
    device: str
    world_size: int
    """Processes that trained together."""
    lanes: int
    """Runs that shared trunk passes with this one at most, itself included; its training time is theirs together."""
    versions: dict[str, str]
    plugin: dict[str, str]
    git: dict[str, Any]
    """Commit and cleanliness of the source of the core and of the plugin; null where it is not under git."""
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


_BY_HAND = ("--set", "command line", "config file")
"""How sources of values begin that the user chose for this run (schema 1 has no field for them)."""


def _from_version_1(data: dict[str, Any]) -> dict[str, Any]:
    sources, versions = data["sources"], data["protocol"]["evaluators"]
    return {
        **data,
        "schema": 2,
        "finished": "",
        "evaluators": {name: {"version": version, "metrics": []} for name, version in versions.items()},
        "chosen": sorted(k for k, s in sources.items() if s.startswith(_BY_HAND) and not k.startswith("backbone.")),
        "flops_per_step": None,
        "world_size": 1,
        "git": {"core": None, "plugin": None},
    }


PREDICTIONS = "predictions.npz"
"""File in a run directory."""


def read_record(path: Path, untouched: bool = True) -> Record:
    """A record from disk, checked against the written schema; `dir` is where it is now.

    ``untouched``: one whose metrics or predictions have been changed since it was written is a fault.
    """
    try:
        data = read_json(path, parse_constant=_no_number)
        if not isinstance(data, dict):
            raise ValueError("it is not an object")
        if data.get("schema") == SCHEMA and not isinstance(data.get("hashes"), dict):
            raise ValueError("it has no hashes")
        if data.get("schema") == 1:
            data = _from_version_1(data)
        if data.get("schema") == 2:
            data = {**data, "schema": 3, "lanes": 1}
        if data.get("schema") == 3:
            data = {**data, "schema": 4, "k_estimate": None}
        if data.get("schema") == 4:
            data = {**data, "schema": SCHEMA, "hashes": None}
        if data.get("schema") != SCHEMA:
            raise GcdbenchError(
                f"{path} has schema {data.get('schema')}; this gcdbench reads schemas 1 to {SCHEMA}. "
                "Use the gcdbench that wrote it, or repeat the run with `gcdbench run --force`."
            )
        _check(data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
        raise GcdbenchError(
            f"The record {path} cannot be read: {fault}. `gcdbench run --force` repeats the run."
        ) from fault
    record = Record(**{**data, "dir": str(path.parent)})
    if untouched:
        changed = what_changed(record)
        if changed is not None:
            raise GcdbenchError(
                f"{changed} since the run was finished. `gcdbench verify {path.parent}` scores its predictions again; "
                "`gcdbench run --force` repeats the run."
            )
    return record


def hashes_of(folder: Path, metrics: Mapping[str, float]) -> dict[str, str]:
    """What a record keeps, so that a later change of its numbers or predictions is noticed."""
    content = (folder / PREDICTIONS).read_bytes()
    return {"predictions": hashlib.sha256(content).hexdigest(), "metrics": metrics_hash(metrics)}


def what_changed(record: Record) -> str | None:
    """What is not as the record was written, if anything; predictions that are not there cannot be told."""
    if record.hashes is None:
        return None
    if record.hashes["metrics"] != metrics_hash(record.metrics):
        return f"The metrics in {Path(record.dir) / 'record.json'} have been changed"
    file = Path(record.dir) / PREDICTIONS
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    if record.hashes["predictions"] != hashlib.sha256(content).hexdigest():
        return f"The predictions in {file} have been changed"
    return None


def metrics_hash(metrics: Mapping[str, float]) -> str:
    """SHA-256 of metrics, whatever their order."""
    return hashlib.sha256(json.dumps(dict(metrics), sort_keys=True).encode()).hexdigest()


def _no_number(text: str) -> float:
    raise ValueError(f"it holds {text}")


def _check(data: dict[str, Any]) -> None:
    """A ValueError that says what is wrong and where."""
    from jsonschema.exceptions import best_match

    fault = best_match(_validator().iter_errors(data))
    if fault is not None:
        where = ".".join(map(str, fault.absolute_path))
        what = fault.message if len(fault.message) < 200 else f"{fault.message[:200]} ..."
        raise ValueError(f"{where}: {what}" if where else what)
    if fingerprint_of(data["protocol"]) != data["fingerprint"]:
        raise ValueError("its fingerprint is not that of its protocol")


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    text = (resources.files("gcdbench.records") / "record.schema.json").read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text))
