"""A run as a report sees it: record, curves, predictions and, where the data is here, images and features."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcdbench.data.data_root import data_root
from gcdbench.errors import GcdbenchError
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.records.record import Record
from gcdbench.records.run_directory import RunDirectory
from gcdbench.report.outcome import Outcome, read_outcome
from gcdbench.report.reopen import Reopened, reopen


@dataclass(frozen=True)
class RunView:
    """One run of a report."""

    name: str
    record: Record
    epochs: list[dict[str, Any]]
    outcome: Outcome
    opened: Reopened | None
    reason: str | None
    """Why images and features are left out."""

    def supervised(self) -> list[tuple[float, float]]:
        """Supervised cross entropy per epoch: the term `ce`, else the first that ends in `_ce`."""
        return supervised(self.epochs)

    def metric(self, name: str) -> list[tuple[float, float]]:
        """A metric at the epochs at which it was evaluated; at least the one that counts."""
        lines = enumerate(self.epochs, 1)
        found = [(float(i), float(e["metrics"][name])) for i, e in lines if name in e.get("metrics", {})]
        if not found and name in self.record.metrics:
            found = [(float(self.record.selected["epoch"]), self.record.metrics[name])]
        return found


def supervised(epochs: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Supervised cross entropy per epoch."""
    points = []
    for number, line in enumerate(epochs, 1):
        losses = line.get("losses", {})
        term = next((t for t in losses if t == "ce"), None) or next((t for t in losses if t.endswith("_ce")), None)
        if term is not None:
            points.append((float(number), float(losses[term])))
    return points


@dataclass(frozen=True)
class Source:
    """Where data and weights of runs may be found."""

    root: Path | None
    """None looks where each run has found its data, and below `./data`."""
    device: str = "auto"
    with_data: bool = True
    """Whether to open images and weights at all."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Runs that were opened without images and features, and why."""
    _shared: dict[Path, SharedResources] = field(default_factory=dict)

    def shared(self, record: Record) -> SharedResources:
        """Data and backbones that several runs of one report share."""
        root = self.root or RunDirectory(Path(record.dir)).data_root or data_root(None)
        if root not in self._shared:
            self._shared[root] = SharedResources(RunEnvironment(root=root, device=self.device))
        return self._shared[root]


def view(record: Record, name: str, source: Source) -> RunView:
    """Read a run, and open its data and weights if that is wanted and possible."""
    opened, reason = None, "They were not asked for." if not source.with_data else None
    if source.with_data:
        try:
            opened = reopen(record, source.shared(record))
        except GcdbenchError as fault:
            reason = f"They need the data and weights of the run: {fault}"
            source.left_out[name] = str(fault)
    outcome = read_outcome(record, opened.class_names if opened else ())
    return RunView(name, record, RunDirectory(Path(record.dir)).epochs(), outcome, opened, reason)
