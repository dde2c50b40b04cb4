"""What the first rank has found out before and after training, for the others, which compute and write nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcdbench.contracts import Progress
from gcdbench.errors import GcdbenchError, UsageError
from gcdbench.records.record import Record
from gcdbench.records.run_directory import RunDirectory
from gcdbench.records.trackers import Trackers
from gcdbench.system.parallel.communicator import Communicator, described, error_like
from gcdbench.training.isolation import stop_lane
from gcdbench.training.lane import Lane

if TYPE_CHECKING:
    from gcdbench.runs.execute import RunResult


class UnwrittenRun(RunDirectory):
    """A run directory that another rank writes."""

    is_run = True

    def log(self, message: str) -> None:
        """The first rank logs."""

    def epochs(self) -> list[dict[str, Any]]:
        """The first rank knows."""
        return []

    def write_skipped(self, rows: Iterable[tuple[str, str]]) -> None:
        """The first rank writes."""


class NoTrackers(Trackers):
    """Trackers of a run that another rank tracks."""

    def __init__(self) -> None:
        super().__init__((), lambda text: None)

    def start(self, folder: Path, config: Mapping[str, Any], epochs_done: int, steps: int) -> None:
        """Nothing is tracked here."""

    def step(self, t: Progress, means: Mapping[str, float]) -> None:
        """Nothing is tracked here."""

    def epoch(self, line: Mapping[str, Any]) -> None:
        """Nothing is tracked here."""


def require_same(run_ids: Sequence[str], ranks: Communicator) -> None:
    """All ranks must mean the same runs: other data, weights or versions of plugins on one machine make others."""
    wanted = ranks.send(list(run_ids))
    with ranks.agreeing():
        if wanted != list(run_ids):
            raise UsageError(
                "The processes of this run do not see the same data, weights, settings and plugins: "
                f"the first one means the run {(wanted or ['none'])[0]}, this one {([*run_ids] or ['none'])[0]}."
            )


def follow(lanes: Sequence[Lane], ranks: Communicator) -> None:
    """Take over which runs continue, which have failed, and what was noted of them."""
    if ranks.alone:
        return
    found: list[dict[str, Any]] = ranks.send([_state(lane) for lane in lanes] if ranks.first else None)
    if ranks.first:
        return
    for lane, state in zip(lanes, found, strict=True):
        lane.saves_within = state["saves_within"]
        lane.ctx.notes.warnings[:] = state["warnings"]
        if state["fault"] is not None:
            stop_lane(lane, _error(state["fault"]))
        elif state["over"]:
            lane.close()


def _state(lane: Lane) -> dict[str, Any]:
    return {
        "over": lane.over,
        "fault": _words(lane.fault),
        "saves_within": lane.saves_within,
        "warnings": list(lane.ctx.notes.warnings),
    }


def share_records(results: dict[str, RunResult], ranks: Communicator) -> None:
    """The records of all runs, on all ranks; and the faults of those without one."""
    own = {run_id: (_plain(r.record), _words(r.fault)) for run_id, r in results.items()} if ranks.first else None
    found = ranks.send(own)
    if ranks.first:
        return
    for run_id, (record, fault) in found.items():
        results[run_id] = dataclasses.replace(
            results[run_id],
            record=None if record is None else Record(**record),
            fault=None if fault is None else _error(fault),
        )


def _error(words: Sequence[str]) -> GcdbenchError:
    name, text, code = words
    return error_like(name, text, int(code))


def _plain(record: Record | None) -> dict[str, Any] | None:
    return None if record is None else {**record.as_dict(), "dir": record.dir}


def _words(fault: GcdbenchError | None) -> list[str] | None:
    return None if fault is None else described(fault)
