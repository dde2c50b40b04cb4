"""Records made by hand, in the shape that runs write."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

from gcdbench.config.protocol import Protocol
from gcdbench.records.record import SCHEMA, Record, metrics_hash

PROTOCOL = Protocol(
    "cub", "i" * 16, "s" * 16, "unlabelled", {"cluster_accuracy": 1, "oracle_base": 1}, 200, "true", "last"
)

CONFIG: dict[str, Any] = {
    "run": {"method": "rlcd", "dataset": "cub", "recipe": "paper", "seed": 0},
    "data": {"label_ratio": 0.5, "novel_ratio": None, "k": None},
    "views": {"resize": 256, "crop": 224},
    "backbone": {"name": "dino", "weights": "pretrained", "train_from": -1},
    "train": {"epochs": 200, "batch_size": 128, "lr": 0.1, "precision": "fp32", "micro_batch": 256},
    "eval": {"rows": "unlabelled", "selection": "last", "every": 0, "batch_size": 256},
    "method": {"alpha": 0.5},
}


BACKBONE = {
    "name": "dino",
    "architecture": "ViT-B/16",
    "weights": "x",
    "weights_hash": "w" * 16,
    "parameters": 85_798_656,
    "image_size": 224,
}


def record(
    method: str = "rlcd",
    seed: int = 0,
    all: float = 70.0,
    *,
    metrics: dict[str, float] | None = None,
    settings: dict[str, Any] | None = None,
    protocol: dict[str, Any] | None = None,
    chosen: list[str] | None = None,
    dataset: str = "cub",
    recipe: str = "paper",
    **more: Any,
) -> Record:
    """A record; ``settings`` maps `section.key` to values, ``protocol`` changes fields of the protocol."""
    config = copy.deepcopy(CONFIG)
    config["run"].update(method=method, dataset=dataset, recipe=recipe, seed=seed)
    for key, value in (settings or {}).items():
        section, name = key.split(".")
        config[section][name] = value
    rules = dataclasses.replace(PROTOCOL, dataset=dataset, **(protocol or {}))
    values = {
        "schema": SCHEMA,
        "run_id": f"{abs(hash((method, seed, recipe, str(settings), str(protocol)))) % 16**12:012x}",
        "method": method,
        "dataset": dataset,
        "recipe": recipe,
        "seed": seed,
        "dir": f"runs/{method}/{dataset}/x{seed}",
        "finished": "2026-01-01T00:00:00+00:00",
        "metrics": metrics or {"all": all, "base": all + 5, "novel": all - 5, "ob": all + 10},
        "hashes": None,
        "evaluators": {},
        "selected": {"rule": "last", "stage": "main", "epoch": 200},
        "config": config,
        "sources": {},
        "chosen": sorted(settings or {}) if chosen is None else chosen,
        "presets": [],
        "protocol": rules.as_dict(),
        "fingerprint": rules.fingerprint(),
        "backbone": BACKBONE,
        "parameters": {"trained": 1, "total": 2},
        "data": {"labelled": 1500, "unlabelled": 4494, "base_classes": 100, "novel_classes": 100, "scored": 4494},
        "k_estimate": None,
        "timings": {"prepare": 1.0, "train": 2.0, "predict": 0.1, "evaluate": 0.1},
        "peak_memory": 1,
        "flops_per_step": {"trunk": 1, "method": 1},
        "device": "cpu",
        "world_size": 1,
        "lanes": 1,
        "versions": {"torch": "2.13.0"},
        "plugin": {"package": f"gcdbench-{method}", "version": "0.1.0"},
        "git": {"core": None, "plugin": None},
        "warnings": [],
    }
    found = {**values, **more}
    if found["hashes"] is None:
        found["hashes"] = {"predictions": "", "metrics": metrics_hash(found["metrics"])}
    return Record(**found)


def write(found: Record, runs: Path) -> Path:
    """Put a record where `gcdbench` looks for it."""
    folder = runs / found.method / found.dataset / found.run_id
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(found.config))
    (folder / "record.json").write_text(json.dumps(found.as_dict()))
    return folder
