"""Whether a record says what the run's predictions say: they are scored again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.contracts import Prediction, Truth
from gcdbench.errors import GcdbenchError
from gcdbench.evaluation.load import load_evaluators
from gcdbench.records.record import PREDICTIONS, Record, read_record, what_changed
from gcdbench.system.files import not_a_file
from gcdbench.training.evaluate import score_with

TOLERANCE = 1e-6
"""Percentage points that another machine's arithmetic may differ by."""


@dataclass(frozen=True)
class Verdict:
    """What came of scoring the predictions of a run again."""

    run_id: str
    folder: str
    checked: int
    """Metrics that agree."""
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the record says what the predictions say."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "ok": self.ok}


def verify_run(folder: Path) -> Verdict:
    """Score a finished run's predictions again and compare every metric with the record."""
    record = read_record(folder / "record.json", untouched=False)
    problems: list[str] = []
    notes: list[str] = []
    if record.hashes is None:
        notes.append("The record has no hashes: it was written by an earlier gcdbench.")
    changed = what_changed(record)
    if changed is not None:
        problems.append(f"{changed} since the run was finished.")
    evaluators, broken = load_evaluators()
    known = {e.name: e.version for e in evaluators}
    skipped = [n for n, facts in record.evaluators.items() if known.get(n) != facts.get("version")]
    notes += broken + [f"The evaluator '{n}' is not here in the version of the record." for n in skipped]
    prediction, truth = _predictions(record)
    unknown = Truth(np.full(len(prediction.cluster), -1), record.data["base_classes"], _classes(record, prediction))
    scores = score_with([e for e in evaluators if e.name not in skipped], prediction, truth, unknown, notes.append)
    unchecked = {m for n in skipped for m in record.evaluators[n].get("metrics", ())}
    named = {m for facts in record.evaluators.values() for m in facts.get("metrics", ())}
    agree = 0
    for name, value in record.metrics.items():
        if name in unchecked:
            continue
        found = scores.metrics.get(name)
        if found is None and name not in named:
            notes.append(f"No one knows which evaluator gave {name}.")
        elif found is None:
            problems.append(f"{name} is {value:g} in the record, but cannot be computed from the predictions.")
        elif not math.isclose(found, value, rel_tol=1e-9, abs_tol=TOLERANCE):
            problems.append(f"{name} is {value:g} in the record, but its predictions give {found:g}.")
        else:
            agree += 1
    return Verdict(record.run_id, str(folder), agree, tuple(problems), tuple(notes))


def _classes(record: Record, prediction: Prediction) -> int:
    """Number of classes the method was given, or found."""
    return record.protocol["k"] or int(prediction.cluster.max(initial=0)) + 1


def _predictions(record: Record) -> tuple[Prediction, Truth | None]:
    path = Path(record.dir) / PREDICTIONS
    odd = not_a_file(path)
    if odd is not None:
        raise GcdbenchError(f"The predictions {path} cannot be scored again: the file {odd}.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        base = {name.removeprefix("base_"): values for name, values in arrays.items() if name.startswith("base_")}
        prediction = Prediction(arrays["cluster"].astype(np.int64), arrays.get("confidence"), base)
        if len(prediction.cluster) != record.data["scored"]:
            raise ValueError(f"{len(prediction.cluster)} rows instead of {record.data['scored']}")
    except Exception as fault:  # a damaged archive can raise almost anything
        raise GcdbenchError(f"The predictions {path} cannot be read ({type(fault).__name__}: {fault}).") from fault
    classes = record.data["base_classes"] + record.data["novel_classes"]
    target = arrays.get("target")
    truth = None if target is None else Truth(target.astype(np.int64), record.data["base_classes"], classes)
    return prediction, truth
