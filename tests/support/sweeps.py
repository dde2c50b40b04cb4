"""Helpers for tests of sweeps."""

from __future__ import annotations

import json
from pathlib import Path

FILE = """
[experiment]
title = "A sweep"
datasets = ["digits"]
seeds = [0, 1]
metrics = ["all", "base", "novel"]
methods = ["simgcd", "supref"]
settings = { "train.epochs" = EPOCHS }

[[row]]
key = "rlcd"
label = "RLCD"
method = "rlcd"
"""


def write_sweep(folder: Path, epochs: int = 1, more: str = "") -> Path:
    """An experiment of six runs on digits."""
    path = folder / "little.toml"
    path.write_text(FILE.replace("EPOCHS", str(epochs)) + more)
    return path


def lines(answer) -> dict[str, dict]:
    """Means and deviations of every line of the table that a command printed as JSON."""
    (study,) = answer.json()["studies"]
    return {row["key"]: row["metrics"] for row in study["rows"]}


def records(runs: Path) -> dict[str, dict]:
    """By run id; each must be there once."""
    found = {}
    for path in runs.glob("*/*/*/record.json"):
        record = json.loads(path.read_text())
        assert record["run_id"] not in found
        found[record["run_id"]] = record
    return found
