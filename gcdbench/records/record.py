"""The record of a finished run: what was run, on what, and what came out.

`record.schema.json` beside this file is generated from the class by `make docs`; `gcdbench results --schema` prints it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final

from gcdbench.config.protocol import fingerprint_of
from gcdbench.errors import GcdbenchError
from gcdbench.records.record_parts import (
    OPEN,
    SECTIONS,
    BackboneFacts,
    Count,
    EvaluatorFacts,
    Hash,
    Hashes,
    KEstimate,
    Positive,
    ProtocolFacts,
    Seconds,
    Selected,
    SourceState,
    Word,
)
from gcdbench.system.files import read_json

SCHEMA: Final = 5
"""Raised when a field is added or the meaning of one changes. Earlier versions are read and completed."""


@dataclass(frozen=True)
class Record:
    """What was run, on what, and what came out. Shares are in percent, times in seconds, sizes in bytes. Written
    last and atomically: a run directory without it is unfinished."""

    schema: Annotated[int, {"const": SCHEMA}]
    run_id: Annotated[str, {"pattern": "^[0-9a-f]{12}$"}]
    """Hash of the resolved config, the data index, the split, the weights and the plugin's version."""
    method: Word
    dataset: Word
    recipe: Word
    """Named variant of the method."""
    seed: Count
    dir: str
    """Run directory at the time of writing."""
    finished: str
    """When the record was written, ISO 8601 in UTC; empty if unknown."""
    metrics: dict[str, float]
    """Numbers of all evaluators. all, base, novel: cluster accuracy v2; ob: oracle base accuracy."""
    hashes: Annotated[dict[str, str] | None, Hashes]
    """SHA-256 of predictions.npz and of the metrics as they were written; null in records of schema 4 and earlier."""
    evaluators: Annotated[dict[str, Any], dict[str, EvaluatorFacts]]
    """Which evaluator gave which metrics."""
    selected: Annotated[dict[str, Any], Selected]
    """Rule, stage and epoch of the predictions that were scored."""
    config: Annotated[dict[str, Any], dict[str, dict[str, Any]], SECTIONS]
    """Every resolved config value by section."""
    sources: dict[str, str]
    """Where the value of each section.key came from."""
    chosen: list[str]
    """Config keys whose value is not the one the recipe prescribes for this dataset and backbone."""
    presets: list[str]
    """Presets that were used, with where they were published."""
    protocol: Annotated[dict[str, Any], ProtocolFacts]
    """What two comparable results must share."""
    fingerprint: Hash
    """Hash of the protocol."""
    backbone: Annotated[dict[str, Any], BackboneFacts, OPEN]
    """The network, its weights and their hash."""
    parameters: Annotated[dict[str, int], dict[str, Count], {"required": ["trained", "total"]}]
    """Trained and total number of parameters."""
    data: Annotated[
        dict[str, Any],
        dict[str, Count],
        {"required": ["labelled", "unlabelled", "base_classes", "novel_classes", "scored"]},
    ]
    """Counts of rows and classes."""
    k_estimate: Annotated[dict[str, Any] | None, KEstimate]
    """Where an estimated number of classes came from; null if it was not estimated."""
    timings: Annotated[dict[str, float], dict[str, Seconds], {"required": ["prepare", "train", "predict", "evaluate"]}]
    """Seconds per phase, summed over all processes that worked on the run."""
    peak_memory: Count
    """On the device during the run for CUDA; otherwise of the whole process up to the end of the run; 0 if unknown."""
    flops_per_step: Annotated[dict[str, int] | None, dict[str, Count], {"required": ["trunk", "method"]}]
    """Floating-point operations (two per multiply-add) of one training step: the frozen trunk's forward pass, and the
    method's forward and backward pass; null if they were not counted."""
    device: str
    world_size: Positive
    """Processes that trained together."""
    lanes: Positive
    """Runs that shared trunk passes with this one at most, itself included; its training time is theirs together."""
    versions: dict[str, str]
    """Versions of Python and of the packages that decide results."""
    plugin: Annotated[dict[str, str], {"required": ["package", "version"]}]
    """Package and version of the method's plugin."""
    git: Annotated[dict[str, Any], dict[str, SourceState | None], {"required": ["core", "plugin"]}]
    """State of the source of the core and of the plugin; null where it is not under git."""
    warnings: list[str] = field(default_factory=list)
    """What the user was warned of."""

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
    """What is not as the record was written, if anything; predictions that are not there cannot be compared."""
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
