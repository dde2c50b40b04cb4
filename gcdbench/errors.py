"""Errors meant for a person: one sentence each, with the exit code the command line ends with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_CODES = {
    0: "done",
    1: "a check said no, or a run failed for a reason of its own",
    2: "wrong usage: an unknown method, dataset, key or value, or runs that do not exist",
    3: "results follow different protocols and cannot be compared",
    4: "data or weights are missing or incomplete",
    5: "a plugin is broken or does not keep its contract",
    6: "training stopped: a loss or a weight was not finite, or memory ran out",
    7: "a process of a run on several processes was lost; what was saved is kept",
    129: "the terminal was closed (SIGHUP); what a run had done is saved",
    130: "interrupted (Ctrl-C, SIGINT); what a run had done is saved",
    143: "asked to end (SIGTERM); what a run had done is saved",
}
"""What each exit code of the command line means (printed by ``gcdbench --help``)."""


class GcdbenchError(Exception):
    """A problem that is explained by its message alone; the command line prints no traceback for it."""

    exit_code = 1


class UsageError(GcdbenchError):
    """The command, a config key or a value is wrong."""

    exit_code = 2


class ProtocolError(GcdbenchError):
    """Results follow different protocols, so they must not stand in one table."""

    exit_code = 3


class DataError(GcdbenchError):
    """Images, annotation files or weights are missing, incomplete or unreadable."""

    exit_code = 4


class BadImage(DataError):
    """An image file cannot be used."""


class PassingFault(DataError):
    """A file cannot be read at the moment, which says nothing about the file."""


class PluginError(GcdbenchError):
    """A plugin cannot be imported, clashes with another, or breaks its contract."""

    exit_code = 5


class TrainingError(GcdbenchError):
    """Training cannot continue (a loss is not finite, memory ran out)."""

    exit_code = 6


class RankLost(GcdbenchError):
    """Another process of the same run has ended; nothing can continue without it."""

    exit_code = 7


class Terminated(KeyboardInterrupt):
    """The process was asked to end by a signal."""

    def __init__(self, number: int, agreed: bool = False) -> None:
        """``agreed``: all ranks of the run stop at the same step, whichever of them got the signal."""
        super().__init__(number)
        self.number = number
        self.agreed = agreed
        self.exit_code = 128 + number


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``name``, or None when nothing is close."""
    candidates = list(known)
    by_lower = {k.lower(): k for k in candidates}
    hits = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[hits[0]] if hits else None


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that does not exist: says what was asked, the nearest valid name, and all of them."""
    candidates = sorted(known)
    close = nearest(name, candidates)
    hint = f" Did you mean '{close}'?" if close else ""
    listing = ", ".join(candidates) if candidates else "none"
    return UsageError(f"There is no {kind} '{name}'.{hint} Known: {listing}.")
