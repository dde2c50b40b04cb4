"""For authors of plugins: the conformance kit, and the replay of recorded trajectories.

from gcdbench.testing import parametrize_checks

@parametrize_checks("mymethod")
def test_conformance(check):
    check()
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcdbench.testing.kit import Report, Session

__all__ = ["parametrize_checks", "run_checks"]


def run_checks(
    name: str,
    kind: str | None = None,
    *,
    recipe: str | None = None,
    data_root: Path | None = None,
    only: Iterable[str] | None = None,
) -> Report:
    """Run all checks of an installed plugin (or ``only`` some), as `gcdbench check` does."""
    from gcdbench.testing.kit import Report
    from gcdbench.testing.subject import open_session

    kind, session = open_session(name, kind, data_root, recipe)
    only = None if only is None else [only] if isinstance(only, str) else list(only)
    session.require(only or ())
    return Report(kind, name, tuple(session.all(only)))


def parametrize_checks(
    name: str, kind: str | None = None, *, recipe: str | None = None, data_root: Path | None = None
) -> Any:
    """A pytest mark that gives a test one ``check`` at a time; the test calls it.

    A check that does not apply is skipped with its reason; one in the plugin's ``expected_failures`` is an expected
    failure. The plugin's checks are counted at the end of the test session.
    """
    import pytest

    from gcdbench.testing.kit import checks_of
    from gcdbench.testing.subject import find_kind

    kind = find_kind(name, kind)
    sessions: dict[str, Session] = {}

    def session() -> Session:
        from gcdbench.testing.subject import open_session

        if name not in sessions:  # the plugin is imported by the first test, not while tests are collected
            sessions[name] = open_session(name, kind, data_root, recipe)[1]
        return sessions[name]

    def call(which: str) -> Any:
        def run() -> None:
            from gcdbench.testing.kit import EXPECTED, FAILED, SKIPPED, SURPRISE

            found = session().outcome(which)
            if found.status == SKIPPED:
                pytest.skip(found.detail)
            if found.status == EXPECTED:
                pytest.xfail(found.detail)
            if found.status in (FAILED, SURPRISE):
                pytest.fail(f"{found.detail}\n{found.check.explains}\nWhat helps: {found.check.fix}", pytrace=False)

        return run

    cases = [
        pytest.param(call(which), id=f"{name}-{which}", marks=pytest.mark.gcdbench_check) for which in checks_of(kind)
    ]
    return pytest.mark.parametrize("check", cases)
