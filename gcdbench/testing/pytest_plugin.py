"""Counts the checks of the conformance kit at the end of a pytest session, so that none is skipped unseen."""

from __future__ import annotations

from typing import Any


def pytest_configure(config: Any) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", "gcdbench_check: a check of gcdbench's conformance kit")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many checks ran, passed, failed, failed as expected and were skipped, and why."""
    names = {"passed": "passed", "failed": "failed", "xfailed": "failed as expected", "skipped": "skipped"}
    found: dict[str, list[Any]] = {}
    for status in names:
        reports = terminalreporter.stats.get(status, [])
        found[status] = [r for r in reports if "gcdbench_check" in getattr(r, "keywords", {})]
    total = sum(map(len, found.values()))
    if not total:
        return
    counts = ", ".join(f"{len(found[status])} {said}" for status, said in names.items())
    ran = total - len(found["skipped"])
    terminalreporter.write_line(f"gcdbench: {total} conformance checks, {ran} ran: {counts}.")
    for report in (*found["xfailed"], *found["skipped"]):
        terminalreporter.write_line(f"  {report.nodeid.rpartition('[')[2].rstrip(']')}: {_reason(report)}")


def _reason(report: Any) -> str:
    if getattr(report, "wasxfail", ""):
        return str(report.wasxfail).removeprefix("reason: ")
    place = report.longrepr
    return str(place[2] if isinstance(place, tuple) else place).removeprefix("Skipped: ")
