"""What a run's predictions say, class by class and cluster by cluster. Needs the run directory only."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcdbench.contracts import IntArray
from gcdbench.errors import GcdbenchError
from gcdbench.records.record import Record
from gcdbench.toolbox import cluster_accuracy


@dataclass(frozen=True)
class ClassResult:
    """How one true class fared."""

    target: int
    name: str
    is_base: bool
    size: int
    predicted: int
    """Rows in the cluster that is matched with the class."""
    hits: int

    @property
    def accuracy(self) -> float:
        """Share of the class's rows that were found, in percent."""
        return 100 * self.hits / self.size if self.size else float("nan")


@dataclass(frozen=True)
class ClusterResult:
    """One discovered cluster."""

    cluster: int
    name: str
    """The base class it stands for to the method, or `novel n`."""
    size: int
    matched: str | None
    """True class it is matched with; None where the truth is unknown or no class was left."""
    matched_is_base: bool | None
    purity: float | None
    """Share of its most frequent true class, in percent."""
    confidence: float | None
    positions: IntArray
    """Places of its rows in the predictions, most confident first."""


@dataclass(frozen=True)
class Outcome:
    """Predictions of a run with names."""

    rows: IntArray
    cluster: IntArray
    target: IntArray | None
    confidence: NDArray[np.float32] | None
    cluster_names: dict[int, str]
    class_names: tuple[str, ...]
    """Names of the true classes by target; numbers where the data set was not opened."""
    num_base: int

    @cached_property
    def mapped(self) -> IntArray | None:
        """Each row's class after the one optimal assignment."""
        return None if self._assignment is None else self._assignment[self.cluster]

    @cached_property
    def _assignment(self) -> IntArray | None:
        if self.target is None:
            return None
        return cluster_accuracy.assign(cluster_accuracy.counts(self.cluster, self.target))

    def class_name(self, target: int) -> str:
        """Name of a true class."""
        return self.class_names[target] if target < len(self.class_names) else f"class {target}"

    @cached_property
    def classes(self) -> list[ClassResult]:
        """Every true class, base classes first; empty where the truth is unknown."""
        if self.target is None or self.mapped is None:
            return []
        count = max(int(self.target.max()) + 1, len(self.class_names))
        sizes = np.bincount(self.target, minlength=count)
        predicted = np.bincount(self.mapped, minlength=count)
        hits = np.bincount(self.target[self.mapped == self.target], minlength=count)
        return [
            ClassResult(t, self.class_name(t), t < self.num_base, int(sizes[t]), int(predicted[t]), int(hits[t]))
            for t in range(count)
        ]

    @cached_property
    def clusters(self) -> list[ClusterResult]:
        """Every cluster that is used, in the order of its number (base classes first)."""
        found = []
        for number in np.unique(self.cluster):
            positions = np.flatnonzero(self.cluster == number)
            sure = None
            if self.confidence is not None:
                positions = positions[np.argsort(-self.confidence[positions], kind="stable")]
                sure = 100 * float(self.confidence[positions].mean())
            matched = matched_is_base = purity = None
            if self.target is not None and self._assignment is not None:
                frequent = np.bincount(self.target[positions])
                purity = 100 * float(frequent.max()) / len(positions)
                own = int(self._assignment[number])
                if own <= int(self.target.max()):
                    matched, matched_is_base = self.class_name(own), own < self.num_base
            name = self.cluster_names.get(int(number), f"cluster {number}")
            found.append(
                ClusterResult(int(number), name, len(positions), matched, matched_is_base, purity, sure, positions)
            )
        return found

    @cached_property
    def confusion(self) -> dict[tuple[str, str], int] | None:
        """Rows by true side and predicted side."""
        if self.target is None or self.mapped is None:
            return None
        true_base, found_base = self.target < self.num_base, self.mapped < self.num_base
        return {
            (side, to): int((true == (side == "base"))[found == (to == "base")].sum())
            for side, true in (("base", true_base), ("novel", true_base))
            for to, found in (("base", found_base), ("novel", found_base))
        }


def read_outcome(record: Record, class_names: tuple[str, ...] = ()) -> Outcome:
    """The predictions of a finished run."""
    folder = Path(record.dir)
    try:
        with np.load(folder / "predictions.npz", allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        with (folder / "predictions.csv").open(newline="", encoding="utf-8", errors="replace") as stream:
            names = {int(row["cluster"]): row["name"] for row in csv.DictReader(stream)}
        return Outcome(
            rows=arrays["row"],
            cluster=arrays["cluster"],
            target=arrays.get("target"),
            confidence=arrays.get("confidence"),
            cluster_names=names,
            class_names=class_names,
            num_base=int(record.data["base_classes"]),
        )
    except Exception as fault:  # a damaged archive can raise almost anything
        raise GcdbenchError(f"The predictions in {folder} cannot be read ({type(fault).__name__}).") from fault
