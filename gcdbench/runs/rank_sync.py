"""What the first rank has found out before and after training, spread to the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gcdbench.errors import GcdbenchError, UsageError
from gcdbench.records.record import Record
from gcdbench.system.parallel.communicator import Ranks, described, error_like

if TYPE_CHECKING:
    from gcdbench.runs.execute import Result
    from gcdbench.training.lane import Runner


def require_same(run_ids: Sequence[str], ranks: Ranks) -> None:
    """All ranks must mean the same runs: other data, weights or versions of plugins on one machine make others."""
    wanted = ranks.send(list(run_ids))

    def compare() -> None:
        if wanted != list(run_ids):
            raise UsageError(
                "The processes of this run do not see the same data, weights, settings and plugins: "
                f"the first one means the run {(wanted or ['none'])[0]}, this one {([*run_ids] or ['none'])[0]}."
            )

    ranks.together(compare)


def follow(runners: Sequence[Runner], ranks: Ranks) -> None:
    """Take over which runs go on, which have failed, and what was noted of them."""
    if ranks.alone:
        return
    found: list[dict[str, Any]] = ranks.send([_state(runner) for runner in runners] if ranks.first else None)
    if ranks.first:
        return
    for runner, state in zip(runners, found, strict=True):
        runner.saves_within = state["saves_within"]
        runner.space.warnings[:] = state["warnings"]
        if state["fault"] is not None:
            runner.stop(_error(state["fault"]))
        elif state["over"]:
            runner.close()


def _state(runner: Runner) -> dict[str, Any]:
    return {
        "over": runner.over,
        "fault": _told(runner.fault),
        "saves_within": runner.saves_within,
        "warnings": list(runner.space.warnings),
    }


def share_records(results: dict[str, Result], ranks: Ranks) -> None:
    """The records of all runs, on all ranks; and the faults of those without one."""
    own = {run_id: (_plain(r.record), _told(r.fault)) for run_id, r in results.items()} if ranks.first else None
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


def _told(fault: GcdbenchError | None) -> list[str] | None:
    return None if fault is None else described(fault)
