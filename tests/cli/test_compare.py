"""`gcdbench compare` and `gcdbench results` through the command line, on real runs and on records made by hand."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tests.support.records import record, write

pytestmark = pytest.mark.usefixtures("few_digits")


@pytest.fixture
def fake(tmp_path):
    """Five seeds of two methods on CUB-200 in ./runs, far apart."""
    for seed in range(5):
        write(record("rlcd", seed, 70.0 + seed / 10), tmp_path / "runs")
        write(record("simgcd", seed, 60.0 + seed / 7), tmp_path / "runs")
    return tmp_path / "runs"


def test_a_table_of_real_runs(cli, some_runs):
    answer = cli("compare", "rlcd", "simgcd", "--runs", some_runs)
    assert answer.code == 0, answer.stderr
    for word in ("rlcd (released)", "simgcd (paper", "All with train.epochs=1", "too few pairs", "Protocol"):
        assert word in answer.stdout
    data = cli("compare", "rlcd", "simgcd", "--runs", some_runs, "--dataset", "digits", "--json").json()
    (table,) = data["comparisons"]
    assert table["backbone"] == "digits-vit"
    first, second = table["rows"]
    assert first["seeds"] == second["seeds"] == [0, 1]
    mean = first["metrics"]["all"]["mean"]
    files = [json.loads(p.read_text()) for p in some_runs.glob("rlcd/digits/*/record.json")]
    assert mean == pytest.approx(sum(f["metrics"]["all"] for f in files) / 2)
    assert second["difference"]["all"]["n"] == 2


def test_verdict_and_bold(cli, fake):
    text = cli("compare", "rlcd", "simgcd", "--markdown").stdout
    assert "| rlcd (paper) | 5 | **70.2 ± 0.2** |" in text
    assert "worse" in text
    rows = list(csv.DictReader(io.StringIO(cli("compare", "rlcd", "simgcd", "--csv").stdout)))
    assert len(rows) == 8
    assert rows[4]["verdict"] == "worse"
    assert "\\textbf{70.2 $\\pm$ 0.2}" in cli("compare", "rlcd", "simgcd", "--latex").stdout


def test_published_numbers_beside_ours(cli, fake):
    text = cli("compare", "rlcd", "simgcd", "--paper", "--markdown").stdout
    assert "| RLCD, published |  | 70.0 | 79.1 | 65.4 | - |" in text
    assert "| SimGCD, published |" in text
    assert "Epoch chosen by Base accuracy on the test set." in text
    data = cli("compare", "rlcd", "simgcd", "--paper", "--json").json()
    assert len(data["comparisons"][0]["published"]) == 17
    lines = list(csv.DictReader(io.StringIO(cli("compare", "rlcd", "simgcd", "--paper", "--csv").stdout)))
    assert {"runs", "RLCD (ICML 2025), Table 1"} < {line["source"] for line in lines}


def test_published_numbers_alone(cli, tmp_path):
    answer = cli("compare", "rlcd", "simgcd", "--dataset", "scars", "--paper")
    assert answer.code == 0, answer.stderr
    assert "scars, dino: published numbers, no finished run here" in answer.stdout
    assert "scars, dinov2" in answer.stdout
    only = cli("compare", "rlcd", "--dataset", "scars", "--paper", "--backbone", "dinov2", "--json").json()
    assert [c["backbone"] for c in only["comparisons"]] == ["dinov2"]
    answer = cli("compare", "rlcd", "simgcd", "--dataset", "digits", "--paper")
    assert answer.code == 2
    assert "neither runs nor published numbers for digits" in answer.stderr


def test_different_protocols_exit_with_3(cli, fake, tmp_path):
    write(record("kmeans", 0, 40.0, protocol={"selection": "best-base-test"}), tmp_path / "runs")
    answer = cli("compare", "rlcd", "kmeans")
    assert answer.code == 3
    assert "selection: last in rlcd (paper); best-base-test in kmeans (paper)" in answer.stderr
    assert answer.stdout == ""
    answer = cli("compare", "rlcd", "kmeans", "--json")
    assert answer.code == 3
    assert "selection" in answer.json()["refused"][0]


def test_tables_that_compare_are_shown_before_the_refusal(cli, fake, tmp_path):
    write(record("rlcd", 0, 40.0, dataset="scars"), tmp_path / "runs")
    write(record("simgcd", 0, 40.0, dataset="scars", protocol={"k": 230}), tmp_path / "runs")
    answer = cli("compare", "rlcd", "simgcd")
    assert answer.code == 3
    assert "cub, dino" in answer.stdout
    assert "k: 200 in rlcd" in answer.stderr


def test_label_ratios_do_not_compare(cli, tmp_path):
    """The whole way: two real runs with different splits."""
    for method, ratio in (("rlcd", "0.5"), ("simgcd", "0.25")):
        small = ("--set", "method.projector_hidden=32") if method == "simgcd" else ()
        done = cli("run", "--method", method, "--dataset", "digits", "--epochs", "1", "--label-ratio", ratio, *small)
        assert done.code == 0, done.stderr
    answer = cli("compare", "rlcd", "simgcd", "--dataset", "digits")
    assert answer.code == 3
    assert "split_hash" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rlcdd", "simgcd"), "no method 'rlcdd'. Did you mean 'rlcd'"),
        (("rlcd", "simgcd", "--dataset", "cubb"), "no dataset 'cubb'. Did you mean 'cub'"),
        (("rlcd", "simgcd", "--dataset", "aircraft"), "no finished run of rlcd and simgcd on aircraft"),
        (
            ("rlcd", "simgcd", "--epochs", "3", "--dataset", "cub"),
            "There is: rlcd (paper) on dino, seeds 0, 1, 2, 3, 4",
        ),
        (("rlcd", "rlcd:released", "--dataset", "cub"), "no finished run of rlcd:released on cub"),
        (("rlcd", "simgcd", "--seed", "9"), "no dataset in runs with finished runs of at least two"),
        (("rlcd", "--run-missing"), "--run-missing needs to know where"),
        ((), "Missing argument"),
    ],
)
def test_mistakes_are_sentences(arguments, words, cli, fake):
    answer = cli("compare", *arguments)
    assert answer.code == 2
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr


def test_run_missing_trains_the_same_seeds_of_both(cli, tmp_path):
    quick = ("--epochs", "1", "--dataset", "digits")
    assert cli("run", "--method", "rlcd", "--seed", "3,4", *quick).code == 0
    answer = cli("compare", "rlcd", "simgcd", "--run-missing", *quick, "--json")
    assert answer.code == 0, answer.stderr
    rows = answer.json()["comparisons"][0]["rows"]
    assert [r["seeds"] for r in rows] == [[3, 4], [3, 4]]
    assert len(list((tmp_path / "runs").glob("*/*/*/record.json"))) == 4
    again = cli("compare", "rlcd", "simgcd", *quick, "--json")
    assert again.json()["comparisons"] == answer.json()["comparisons"]


def test_nothing_is_trained_before_a_mistake_is_told(cli, tmp_path):
    quick = ("--run-missing", "--dataset", "digits", "--epochs", "1")
    for wrong, words in (
        (("simgdc",), "Did you mean 'simgcd'"),
        (("simgcd", "--set", "method.alpha=1"), "method.alpha"),
    ):
        answer = cli("compare", "rlcd", *wrong, *quick)
        assert answer.code == 2
        assert words in answer.stderr
        assert not (tmp_path / "runs").exists()


def test_one_recipe_named_twice_is_one_method(cli):
    answer = cli("compare", "rlcd", "rlcd:released", "--run-missing", "--dataset", "digits", "--epochs", "1", "--json")
    assert answer.code == 0, answer.stderr
    (row,) = answer.json()["comparisons"][0]["rows"]
    assert row["seeds"] == [0, 1, 2]


def test_a_setting_that_one_method_lacks_is_told(cli, fake, tmp_path):
    answer = cli("compare", "rlcd", "simgcd", "--dataset", "cub", "--set", "method.nothing=1")
    assert answer.code == 2
    assert "'rlcd' has no setting method.nothing." in answer.stderr


def test_run_missing_tells_what_failed(cli):
    answer = cli("compare", "rlcd", "simgcd", "--run-missing", "--dataset", "cub")
    assert answer.code == 4
    assert "2 of the runs failed" in answer.stderr
    assert "CUB-200-2011 is not complete" in answer.stderr


def test_results_lists_runs(cli, some_runs):
    text = cli("results", "--runs", some_runs).stdout
    assert "4 finished, 0 unfinished." in text
    data = cli("results", "--runs", some_runs, "--method", "rlcd", "--json").json()
    assert [r["seed"] for r in data["runs"]] == [0, 1]
    assert data["runs"][0]["chosen"] == {"train.epochs": 1, "eval.every": 1}
    assert data["unreadable"] == []
    rows = list(csv.DictReader(io.StringIO(cli("results", "--runs", some_runs, "--csv").stdout)))
    assert len(rows) == 4
    assert float(rows[0]["all"]) == data["runs"][0]["metrics"]["all"]
    assert cli("results", "--runs", some_runs, "--dataset", "cub", "--json").json()["runs"] == []


def test_results_of_unfinished_and_unreadable_runs(cli, fake):
    folders = sorted(fake.glob("rlcd/cub/*"))
    (folders[0] / "record.json").unlink()
    (folders[1] / "record.json").write_text(json.dumps({"schema": 99}))
    answer = cli("results", "--method", "rlcd")
    assert "0 of 200" in answer.stdout
    assert "has schema 99; this gcdbench reads schemas 1 to 5" in answer.stderr
    assert "3 finished, 1 unfinished." in answer.stdout
    (folders[0] / "config.json").write_text("{")
    assert "config.json cannot be read" in cli("results", "--method", "rlcd").stdout


def test_results_where_there_are_none(cli):
    assert cli("results").stdout.startswith("There are no runs in runs.")
    assert json.loads(cli("results", "--schema").stdout)["properties"]["schema"] == {"const": 5}
