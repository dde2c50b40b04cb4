"""`gcdbench report` through the command line."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("few_digits")


def test_report_of_a_run(cli, some_runs, tmp_path):
    run = next(some_runs.glob("rlcd/digits/*")).name
    answer = cli("report", run[:8], "--runs", some_runs, "-o", "r.html", "--plots", "plots")
    assert answer.code == 0, answer.stderr
    assert "Wrote r.html" in answer.stdout
    assert "t-SNE" in (tmp_path / "r.html").read_text()
    assert {p.suffix for p in (tmp_path / "plots").iterdir()} == {".svg", ".pdf"}
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".r.html")] == []


def test_report_of_a_comparison(cli, some_runs, tmp_path):
    answer = cli("report", "--compare", "rlcd", "simgcd", "--runs", some_runs, "--no-images", "--paper")
    assert answer.code == 0, answer.stderr
    text = (tmp_path / "report.html").read_text()
    assert "rlcd and simgcd compared" in text
    assert "too few pairs" in text
    assert "No published numbers for digits" in text


def test_report_of_a_study(cli, tmp_path):
    quick = ("--dataset", "digits", "--seed", "0", "--epochs", "1")
    answer = cli("report", "--table", "distillation", *quick)
    assert answer.code == 2
    assert "run `gcdbench table distillation` first" in answer.stderr
    assert cli("table", "distillation", *quick).code == 0
    answer = cli("report", "--table", "distillation", *quick, "-o", "deep/t.html")
    assert answer.code == 0, answer.stderr
    assert "pseudo-base (RLCD)" in (tmp_path / "deep" / "t.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing",), "There is no run 'nothing'"),
        (("a", "b"), "A report is about one run"),
        (("--table", "a", "b"), "--table takes one experiment"),
        (("--table", "--compare", "a"), "exclude each other"),
        (("--table", "ablaton"), "Did you mean 'ablation'"),
        (("--compare", "rlcdd"), "Did you mean 'rlcd'"),
        ((), "Missing argument"),
    ],
)
def test_mistakes_are_sentences(arguments, words, cli, tmp_path):
    answer = cli("report", *arguments)
    assert answer.code == 2
    assert words in answer.stderr
    assert not (tmp_path / "report.html").exists()


def test_an_unfinished_run_is_told(cli, some_runs, tmp_path):
    import shutil

    shutil.copytree(next(some_runs.glob("rlcd/digits/*")), tmp_path / "runs" / "rlcd" / "digits" / "x1")
    (tmp_path / "runs" / "rlcd" / "digits" / "x1" / "record.json").unlink()
    answer = cli("report", "x1")
    assert answer.code == 2
    assert "unfinished" in answer.stderr


def test_without_matplotlib_it_says_what_to_install(cli, some_runs, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    answer = cli("report", "x", "--runs", some_runs)
    assert answer.code == 2
    assert "pip install 'gcdbench[report]'" in answer.stderr
