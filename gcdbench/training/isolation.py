"""What goes wrong in one lane ends that lane alone, on all ranks, and leaves it saved as far as it is whole."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType

from gcdbench.errors import GcdbenchError, PluginError, RankLost
from gcdbench.prepare.opened_data import DataChanged
from gcdbench.system.interrupts import Interrupts
from gcdbench.system.observer import Observer
from gcdbench.system.parallel.communicator import ALONE, Communicator
from gcdbench.system.plugin_call import as_user_error, forget_frames
from gcdbench.training.lane import Lane
from gcdbench.training.method_trainer import NotFinite
from gcdbench.training.nonfinite_report import write_evidence

_TAINTED = (PluginError, DataChanged)
"""Faults after which a run must not be saved as it stands: its last steps cannot be trusted."""


class Guard:
    """Three layers around what the loop does: faults of a lane, agreement of ranks, and signals."""

    def __init__(self, observer: Observer, ranks: Communicator = ALONE, interrupts: Interrupts | None = None) -> None:
        self.observer = observer
        self.ranks = ranks
        self.interrupts = interrupts or Interrupts()

    def __call__(self, lane: Lane) -> AbstractContextManager[None]:
        """What fails inside, on this rank or another, stops this lane; the others continue."""
        return _Isolated([lane], self.ranks, self.observer)

    def here(self, lane: Lane) -> AbstractContextManager[None]:
        """The same for what this rank does alone."""
        return _Isolated([lane], ALONE, self.observer)

    def shared(self, lanes: Sequence[Lane]) -> AbstractContextManager[None]:
        """What fails inside is what all lanes need (images, the trunk): it stops all of them."""
        return _Shared(lanes, self.ranks, self.observer)

    def uninterrupted(self) -> AbstractContextManager[None]:
        """What is done inside is done whole; a signal that arrives meanwhile is raised at the end."""
        return self.interrupts.deferred()

    def stopping(self) -> AbstractContextManager[None]:
        """With several ranks, signals wait until all ranks have agreed to stop (`Clock.due`)."""
        return nullcontext() if self.ranks.alone else self.interrupts.held()


class _Isolated(AbstractContextManager[None]):
    """Faults end lanes, not the program."""

    def __init__(self, lanes: Sequence[Lane], ranks: Communicator, observer: Observer) -> None:
        self.lanes, self.ranks, self.observer = lanes, ranks, observer

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if fault is not None and not isinstance(fault, Exception):  # a signal, or the end of the program
            return False
        found = self.settled(fault)
        if found is None:
            return False
        if isinstance(found, RankLost):
            if found is fault:
                return False
            raise found
        for lane in alive(self.lanes):
            self.observer.dropped(lane.ctx.name, stop_lane(lane, found))
        return True

    def settled(self, fault: Exception | None) -> Exception | None:
        """What all ranks have to do with: this rank's fault, or that of another one."""
        if isinstance(fault, RankLost):
            return fault
        try:
            self.ranks.settle(fault)
        except Exception as other:
            return other
        return fault


class _Shared(_Isolated):
    """What lanes share fails for all of them. Ranks have agreed on it, or they lost connection to each other."""

    def settled(self, fault: Exception | None) -> Exception | None:
        """A fault that the others have not met means that they wait somewhere else."""
        if fault is None or isinstance(fault, RankLost) or self.ranks.alone or self.ranks.is_settled(fault):
            return fault
        lost = RankLost(f"One of the processes has failed alone: {fault}")
        lost.__cause__ = fault
        return lost


def alive(lanes: Iterable[Lane]) -> list[Lane]:
    """Those that are neither finished nor stopped."""
    return [lane for lane in lanes if not lane.over]


def stop_lane(lane: Lane, fault: BaseException) -> GcdbenchError:
    """End a lane's run here, saved as it stands if it is whole; what is said to the user."""
    if lane.ours:
        trace = "".join(traceback.format_exception(fault))
        with suppress(Exception):  # a full disk may be the very reason; nothing here may hurt the other lanes
            lane.folder.log(f"stopped: {type(fault).__name__}: {fault}\n{trace}")
    name = lane.ctx.config.method
    if isinstance(fault, NotFinite) and lane.is_open and lane.first:
        with suppress(Exception):
            fault = fault.with_evidence(write_evidence(lane, fault))
    elif _worth_saving(lane, fault):
        _save(lane)
    if isinstance(fault, Exception):
        lane.fault = as_user_error(fault, name)
        forget_frames(fault)
        if lane.ours and lane.first and not isinstance(fault, RankLost):
            with suppress(OSError):
                lane.folder.write_failure(str(lane.fault))
    else:
        lane.fault = GcdbenchError(f"The run of '{name}' was interrupted.")
    lane.close()
    return lane.fault


def _worth_saving(lane: Lane, fault: BaseException) -> bool:
    whole = lane.between_steps and lane.at.step and lane.saves_within and lane.first
    # A GPU may wait without end for a message of a rank that is gone.
    waits = isinstance(fault, RankLost) and lane.ctx.compute.device.type == "cuda"
    return bool(whole) and not isinstance(fault, _TAINTED) and not waits


def _save(lane: Lane) -> None:
    """Whatever ended the run, its last whole step is worth keeping; else the older checkpoint stays."""
    try:
        lane.save_within()
        lane.folder.log(f"saved after epoch {lane.at.epoch + 1}, step {lane.at.step}")
    except Exception as fault:
        with suppress(OSError):
            lane.folder.log(f"not saved: {type(fault).__name__}: {fault}")
