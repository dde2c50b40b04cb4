"""The conformance kit: a sound plugin passes, and each broken one is caught by exactly the check meant for it."""

from __future__ import annotations

import re
from types import MappingProxyType

import numpy as np
import pytest

from gcdbench.errors import UsageError
from gcdbench.prepare import opened_data as dataside
from gcdbench.registry import Plugin
from gcdbench.testing.easy import SortedDigits
from gcdbench.testing.kit import FAILED, PASSED, SKIPPED, Report, checks_of
from gcdbench.testing.positions import CHEATS, by_embedding, chance
from gcdbench.testing.subject import session_of
from gcdbench.toolbox.cluster_accuracy import v2
from tests.testing import broken

ELSEWHERE = {"presets", "import-quiet", "position"}
"""Broken plugins that need a package or module of their own; `position` is about the harness, whatever the plugin."""


pytestmark = pytest.mark.kit  # `make test-kit`


def plugin(target: str, kind: str = "method", name: str = "subject") -> Plugin:
    return Plugin(kind, name, target, "a package", "1.0", "")


def check_all(target: str, kind: str = "method", name: str = "subject") -> Report:
    session = session_of(plugin(target, kind, name))
    return Report(kind, name, tuple(session.all()))


def class_name(check: str) -> str:
    return "Fails" + "".join(part.capitalize() for part in check.split("-"))


def assert_only(report: Report, check: str) -> None:
    failed = [o.check.name for o in report.of(FAILED)]
    assert failed == [check], report.summary()
    assert not report.ok


def test_a_sound_method_passes_everything():
    report = check_all("tests.testing.broken:Sound")
    assert report.ok
    skipped = {o.check.name for o in report.of(SKIPPED)}
    assert skipped == {"presets"}, report.summary()
    assert len(report.of(PASSED)) == len(checks_of("method")) - 1


@pytest.mark.parametrize("check", [c for c in checks_of("method") if c not in ELSEWHERE])
def test_a_broken_method_is_caught_by_the_check_meant_for_it(check):
    report = check_all(f"tests.testing.broken:{class_name(check)}")
    assert_only(report, check)
    found = next(o for o in report.outcomes if o.check.name == check)
    assert found.detail
    assert found.check.fix


def test_a_harness_that_shows_rows_in_the_order_of_the_files_is_caught(monkeypatch):
    monkeypatch.setattr(dataside, "row_order", lambda index: np.arange(len(index)))
    found = session_of(plugin("tests.testing.broken:Sound")).outcome("position")
    assert found.status == FAILED
    assert "can be guessed; chance gives at most" in found.detail


@pytest.mark.parametrize("what", [*CHEATS.values(), by_embedding])
def test_every_cheat_by_position_would_work_on_sorted_files(what, monkeypatch):
    monkeypatch.setattr(dataside, "row_order", lambda index: np.arange(len(index)))
    lab = session_of(plugin("tests.testing.broken:Sound")).subject
    ctx = lab.ctx(dataset=SortedDigits)
    pool, split = lab.pool(ctx), ctx.data.numbered
    target, answer = split.target[pool.queries.index], what(lab.pool(ctx), split.num_classes)
    assert v2(target, answer, 3).all > chance(target, answer, 3)


def test_a_loud_import_is_caught(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where it leaves a file
    report = check_all("tests.testing.loud:FailsImportQuiet")
    assert_only(report, "import-quiet")
    said = report.of(FAILED)[0].detail
    for what in ("prints 'welcome'", "random numbers of torch", "random numbers of numpy", "left_behind.txt"):
        assert what in said


PRESETS = {
    "an unknown key": {"presets/default.toml": '[default]\nsource = "a"\n[dataset.cub.train]\nepoch = 3\n'},
    "no source": {"presets/default.toml": "[dataset.cub.train]\nepochs = 3\n"},
    "a file that belongs to no recipe": {"presets/standard.toml": '[default]\nsource = "a"\n'},
    "no TOML in a paper table": {"paper/table.toml": "id = \n"},
    "a paper table without rows": {"paper/table.toml": 'id = "x"\ntitle = "x"\nsource = "x"\nmetrics = []\n'},
}


@pytest.mark.parametrize("fault", PRESETS)
def test_broken_presets_and_tables_are_caught(fault, tmp_path, monkeypatch):
    name = "broken_" + re.sub(r"\W", "_", fault)
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text("from tests.testing.broken import Sound\n\n\nclass Broken(Sound):\n    pass\n")
    for path, text in PRESETS[fault].items():
        (package / path).parent.mkdir()
        (package / path).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    if fault == "an unknown key":
        assert_only(check_all(f"{name}:Broken"), "presets")
    else:
        assert session_of(plugin(f"{name}:Broken")).outcome("presets").status == FAILED


def test_every_check_has_a_broken_plugin():
    for check in checks_of("method"):
        assert check in ELSEWHERE or hasattr(broken, class_name(check)), check


class Declared(broken.FailsGradients):
    """Known to fail."""

    expected_failures = {"gradients": "the layer is for later"}  # noqa: RUF012


class Improved(broken.Sound):
    """Declared to fail, but does not."""

    expected_failures = {"gradients": "the layer is for later"}  # noqa: RUF012


class Mistaken(broken.Sound):
    """Declares what is no check."""

    expected_failures = {"gradient": "the layer is for later"}  # noqa: RUF012


class Silent(broken.Sound):
    """Declares without a reason."""

    expected_failures = MappingProxyType({"gradients": " "})


def own(cls: type) -> str:
    return f"tests.testing.test_kit:{cls.__name__}"


def test_expected_failures_are_counted_with_their_reason():
    report = check_all(own(Declared))
    assert report.ok
    assert "1 failed as expected" in report.summary()
    assert "failed as expected: gradients: the layer is for later" in report.summary()


def test_an_expected_failure_that_passes_is_told():
    report = check_all(own(Improved))
    assert not report.ok
    assert "1 passed unexpectedly" in report.summary()


@pytest.mark.parametrize(
    ("cls", "message"),
    [(Mistaken, "'gradient', which is no check. Did you mean 'gradients'"), (Silent, "without a reason")],
)
def test_declarations_are_checked(cls, message):
    with pytest.raises(UsageError, match=message):
        session_of(plugin(own(cls)))


def test_a_summary_counts_everything():
    report = check_all("tests.testing.broken:FailsLosses")
    counts = report.as_dict()["counts"]
    assert sum(counts.values()) == len(checks_of("method"))
    first = report.summary().splitlines()[0]
    assert first.startswith(f"method 'subject': {len(checks_of('method'))} checks, ")
    assert f"{counts[SKIPPED]} skipped" in first
    assert "what helps losses: Return gcdbench.Losses" in report.summary()
