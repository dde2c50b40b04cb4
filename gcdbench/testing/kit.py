"""The conformance kit: named checks of a plugin, each with what it means and what to do when it fails.

A check is a function that takes a subject (what the kit knows of a plugin) and returns, raises `Failed`, or raises
`NotApplicable`. Checks build on each other: one whose foundation failed is skipped and says so, so that one fault is
reported once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from gcdbench.errors import GcdbenchError, PluginError, UsageError, nearest, unknown
from gcdbench.system.debugging import look_at, raised_at

PASSED, FAILED, EXPECTED, SURPRISE, SKIPPED = "passed", "failed", "failed as expected", "passed unexpectedly", "skipped"


FOUNDATION = "failed, on which it builds"


class Failed(Exception):
    """The plugin does not do what it must; the message says what was seen."""


class NotApplicable(Exception):
    """The check makes no sense for this plugin; the message says why."""


@dataclass(frozen=True)
class Check:
    """One check and what a person should know of it."""

    name: str
    run: Callable[[Any], None]
    explains: str
    """What must hold, and why."""
    fix: str
    """What usually helps."""
    needs: tuple[str, ...] = ()
    """Checks that must have passed, or this one says nothing."""
    after: tuple[str, ...] = ()
    """Checks that must not have failed; that they do not apply is no reason to leave this one out."""


@dataclass(frozen=True)
class Outcome:
    """What came of a check."""

    check: Check
    status: str
    detail: str = ""
    """Why it failed or was skipped."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Neither failed nor passed against the declaration."""
        return self.status not in (FAILED, SURPRISE)


CHECKS: dict[str, dict[str, Check]] = {"method": {}, "dataset": {}, "evaluator": {}, "k-estimator": {}}
"""By kind of plugin, in the order in which they are run."""


MODULES = (
    *("package", "losses", "prediction", "training", "learning"),
    *("dataset", "evaluator", "k_estimator"),
)
"""Modules of `checks/` that register checks when they are imported, in the order of the checks."""


def check(
    kind: str, name: str, *, explains: str, fix: str, needs: tuple[str, ...] = (), after: tuple[str, ...] = ()
) -> Callable[[Any], Any]:
    """Register a check of a kind of plugin."""

    def register(function: Callable[[Any], None]) -> Callable[[Any], None]:
        assert all(other in CHECKS[kind] for other in (*needs, *after)), f"{name} builds on a check that comes later"
        CHECKS[kind][name] = Check(name, function, explains, fix, needs, after)
        return function

    return register


def checks_of(kind: str) -> dict[str, Check]:
    """All checks of a kind of plugin."""
    for module in MODULES:
        import_module(f"gcdbench.testing.checks.{module}")
    return CHECKS[kind]


@dataclass
class Session:
    """The checks of one plugin, each run at most once."""

    subject: Any
    checks: Mapping[str, Check]
    expected: Mapping[str, str] = field(default_factory=dict)
    """Checks that are known to fail, and why."""
    done: dict[str, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, reason in self.expected.items():
            if name not in self.checks:
                close = nearest(name, self.checks)
                hint = f" Did you mean '{close}'?" if close else ""
                raise UsageError(f"expected_failures names '{name}', which is no check.{hint}")
            if not (isinstance(reason, str) and reason.strip()):
                raise UsageError(f"expected_failures names '{name}' without a reason.")

    def require(self, names: Iterable[str]) -> None:
        """A UsageError for a name that is no check."""
        for name in names:
            if name not in self.checks:
                raise unknown("check called", name, self.checks)

    def outcome(self, name: str) -> Outcome:
        """Run a check, and before it those that it builds on."""
        if name not in self.done:
            self.done[name] = self._run(self.checks[name])
        return self.done[name]

    def _run(self, one: Check) -> Outcome:
        for other in (*one.after, *one.needs):
            before = self.outcome(other)
            if before.status in (FAILED, EXPECTED):
                return Outcome(one, SKIPPED, f"'{other}' {FOUNDATION}")
            if before.status == SKIPPED and (other in one.needs or FOUNDATION in before.detail):
                return Outcome(one, SKIPPED, before.detail)
        started = time.monotonic()
        status, detail = _attempt(one, self.subject)
        if one.name in self.expected:
            if status == FAILED:
                status, detail = EXPECTED, self.expected[one.name]
            elif status == PASSED:
                status, detail = SURPRISE, "it is declared to fail but passes: remove it from expected_failures"
        return Outcome(one, status, detail, time.monotonic() - started)

    def all(self, names: Iterable[str] | None = None) -> Iterator[Outcome]:
        """The outcomes of some or all checks, as they come."""
        for name in self.checks if names is None else names:
            yield self.outcome(name)


def _attempt(one: Check, subject: Any) -> tuple[str, str]:
    try:
        one.run(subject)
    except NotApplicable as reason:
        return SKIPPED, str(reason)
    except Failed as reason:
        return FAILED, str(reason)
    except PluginError as fault:
        return FAILED, str(fault)
    except GcdbenchError as fault:
        return FAILED, f"{type(fault).__name__}: {fault}"
    except (Exception, SystemExit) as fault:  # whatever a plugin raises is its failure, and the other checks continue
        look_at(fault)
        return FAILED, f"{type(fault).__name__}: {fault}{raised_at(fault)}"
    return PASSED, ""


@dataclass(frozen=True)
class Report:
    """All outcomes of a plugin."""

    kind: str
    name: str
    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed that was not declared, and something was run at all."""
        return all(o.ok for o in self.outcomes) and any(o.status == PASSED for o in self.outcomes)

    def of(self, *statuses: str) -> list[Outcome]:
        """Outcomes with one of these statuses."""
        return [o for o in self.outcomes if o.status in statuses]

    def summary(self) -> str:
        """How many checks there are and what came of them; a reason for each that did not pass."""
        ran = len(self.outcomes) - len(self.of(SKIPPED))
        counts = [f"{len(self.of(PASSED))} passed", f"{len(self.of(FAILED))} failed"]
        counts += [f"{len(self.of(EXPECTED))} failed as expected", f"{len(self.of(SKIPPED))} skipped"]
        if self.of(SURPRISE):
            counts.append(f"{len(self.of(SURPRISE))} passed unexpectedly")
        head = f"{self.kind} '{self.name}': {len(self.outcomes)} checks, {ran} ran: {', '.join(counts)}."
        lines = [f"  {o.status}: {o.check.name}: {o.detail}" for o in self.of(FAILED, SURPRISE, EXPECTED, SKIPPED)]
        lines += [f"  what helps {o.check.name}: {o.check.fix}" for o in self.of(FAILED)]
        return "\n".join([head, *lines])

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        listed = [
            {
                "check": o.check.name,
                "status": o.status,
                "detail": o.detail,
                "explains": o.check.explains,
                "fix": o.check.fix,
                "seconds": round(o.seconds, 3),
            }
            for o in self.outcomes
        ]
        counts = {status: len(self.of(status)) for status in (PASSED, FAILED, EXPECTED, SURPRISE, SKIPPED)}
        return {"kind": self.kind, "name": self.name, "ok": self.ok, "counts": counts, "checks": listed}
