"""What is printed fits the terminal: no id, number or time is broken, and nothing looks like an exponent."""

from __future__ import annotations

import re
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from gcdbench.cli.progress import Display
from gcdbench.cli.terminal_table import print_columns
from gcdbench.system.observer import RunName, Step
from tests.support.records import record, write

WIDTHS = (60, 80, 120, 200)
EXPONENTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹˒]")
RUN = RunName("rlcd", "released", "a-data-set-with-a-long-name", 0, 200)


@pytest.fixture
def runs(tmp_path):
    """Five seeds of two methods, and one of a third with many settings."""
    for seed in range(5):
        write(record("rlcd", seed, 70.0 + seed / 10), tmp_path / "runs")
        write(record("simgcd", seed, 60.0 + seed / 7), tmp_path / "runs")
    return tmp_path / "runs"


def ids(runs):
    return [path.parent.name for path in runs.glob("*/*/*/record.json")]


@pytest.mark.parametrize("width", WIDTHS)
def test_results(width, cli, runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    answer = cli("results", "--runs", runs)
    assert answer.code == 0, answer.stderr
    assert max(map(len, answer.stdout.splitlines())) <= width
    for run in ids(runs):
        assert answer.stdout.count(run) == 1
    assert not EXPONENTS.search(answer.stdout)
    assert ("--wide" in answer.stdout) == ("Protocol" not in answer.stdout.replace("without Protocol", ""))
    whole = cli("results", "--runs", runs, "--wide").stdout
    assert "Protocol" in whole
    assert all(run in whole for run in ids(runs))


@pytest.mark.parametrize("width", WIDTHS)
def test_compare_and_table(width, cli, runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    for words in (("compare", "rlcd:paper", "simgcd"), ("table", "fine-grained", "--dataset", "cub", "--recorded")):
        answer = cli(*words, "--runs", runs)
        assert answer.code == 0, answer.stderr
        assert max(map(len, answer.stdout.splitlines())) <= width, words
        assert not EXPONENTS.search(answer.stdout)
        for number in ("70.2", "60.3") if words[0] == "compare" else ("79.1", "65.6"):
            assert re.search(rf"(?<![\d.]){number}(?![\d.])", answer.stdout), (words, number)


@pytest.mark.parametrize("what", ["methods", "datasets", "backbones", "evaluators", "k-estimators", "experiments"])
@pytest.mark.parametrize("width", WIDTHS[:2])
def test_lists(what, width, cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    answer = cli("list", what)
    assert answer.code == 0, answer.stderr
    assert max(map(len, answer.stdout.splitlines())) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_progress(width, capsys):
    console = Console(force_terminal=True, width=width, stderr=True, legacy_windows=False)
    with Display(console) as shown:
        shown.started([RUN, RUN], 0)
        shown.last = 0.0
        shown.step(Step("discovery", 11, 200, 12, 390, 11, [(RUN, {"total": 1.25, "ce": 0.5})]))
        shown.live.refresh()
    said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", said) if "epoch 12/200" in line]
    assert lines
    assert max(map(len, lines)) <= width
    for line in lines:
        assert "epoch 12/200 step 13/390" in line
        assert re.search(r"\d:\d\d:\d\d gone, (-|\d+):(--|\d\d):(--|\d\d) left$", line), line


@given(
    st.lists(st.lists(st.text("ab1 .±", max_size=14), min_size=3, max_size=3), min_size=1, max_size=4),
    st.integers(40, 120),
)
def test_any_table_keeps_its_words_whole(rows, width):
    console = Console(width=width, force_terminal=True, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        print_columns(console, ["Name", "One", "Two"], [[Text(cell) for cell in row] for row in rows])
    lines = captured.get().splitlines()
    assert max(len(line) for line in lines) <= width
    printed = {word for line in lines for word in line.replace("│", " ").split()}
    assert {word for row in rows for cell in row for word in cell.split()} <= printed


def test_a_file_has_no_width(cli, runs, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    shutil.copytree(runs, runs.with_name("again"))
    said = cli("results", "--runs", runs.with_name("again")).stdout
    assert "Protocol" in said
    assert "--wide" not in said
