"""`gcdbench table`: every experiment in --dry-run, two of them in full."""

from __future__ import annotations

import csv
import io
import re

import pytest

from gcdbench.analysis.experiment_file import experiment_files, load_experiment

NAMES = sorted(name for name in experiment_files() if load_experiment(name).published is not None)


@pytest.mark.usefixtures("few_digits")
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_runs_dry_on_digits(name, cli, tmp_path):
    answer = cli("table", name, "--dataset", "digits", "--dry-run")
    assert answer.code == 0, answer.stderr
    assert not (tmp_path / "runs").exists()
    if name == "parameters":
        assert "Nothing is trained" in answer.stdout
    else:
        found = re.search(
            r"(\d+) of (\d+) runs to train, (?:in up to \d+ lanes|one after another), about", answer.stdout
        )
        assert found is not None
        assert int(found[1]) == int(found[2]) >= 3


@pytest.mark.usefixtures("few_digits")
def test_dry_run_as_json(cli):
    data = cli("table", "oracle-base", "--dataset", "digits", "--seed", "0", "--dry-run", "--json").json()
    assert [run["method"] for run in data["runs"]] == ["simgcd", "legogcd", "supref", "rlcd"]
    assert all(run["seconds"] > 0 for run in data["runs"])
    assert data["not_installed"] == []


def test_dry_run_without_the_data_says_so(cli):
    answer = cli("table", "ablation", "--dry-run")
    assert answer.code == 4
    assert answer.stdout.count("CUB-200-2011 is not complete") == 1
    assert "(a) Main on cub; (b)" in answer.stdout
    assert "8 rows cannot run" in answer.stderr


@pytest.mark.slow
def test_an_experiment_in_full_on_digits(gcdbench, tmp_path):
    """All rows on all digits, one seed, in lanes. Another experiment knows the run that it shares."""
    short = ("--dataset", "digits", "--seed", "0", "--epochs", "4", "--json")
    answer = gcdbench("table", "distillation", *short)
    assert answer.code == 0, answer.stderr
    assert "rlcd on digits in 3 lanes: training 4 epochs" in answer.stderr
    rows = {row["key"]: row for row in answer.json()["studies"][0]["rows"]}
    assert set(rows) == {"all", "learnable", "pseudo_base"}
    assert all(row["metrics"]["base"]["mean"] > 85 for row in rows.values())
    assert rows["pseudo_base"]["published"] == {"all": 83.4, "base": 84.2, "novel": 81.9}
    assert len(list((tmp_path / "runs").glob("*/*/*/record.json"))) == 3
    plan = gcdbench("table", "pseudo-labels", *short, "--dry-run").json()
    assert sorted((run["method"], run["status"]) for run in plan["runs"]) == [("rlcd", "finished"), ("simgcd", "new")]


@pytest.mark.usefixtures("few_digits")
def test_formats_and_resuming(cli, tmp_path):
    quick = ("table", "distillation", "--dataset", "digits", "--seed", "0", "--epochs", "1")
    text = cli(*quick, "--markdown")
    assert text.code == 0, text.stderr
    assert re.search(r"\| pseudo-base \(RLCD\) \\\*[\d,]+ \| 1 \|", text.stdout)
    assert "Ours with train.epochs=1." in text.stdout
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").glob("*/*/*/record.json")}
    rows = list(csv.DictReader(io.StringIO(cli(*quick, "--csv").stdout)))
    assert len(rows) == 9
    assert rows[0]["published"] == "81.8"
    assert rows[0]["published_on"] == "cifar100"
    assert "\\toprule" in cli(*quick, "--latex").stdout
    # Nothing is trained twice, and what was deleted is trained again.
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").glob("*/*/*/record.json")} == stamps
    gone = next(iter(stamps))
    gone.unlink()
    assert cli(*quick).code == 0
    assert gone.is_file()


def test_parameters(cli):
    rows = cli("table", "parameters", "--json").json()["studies"][0]["rows"]
    ours = {row["key"]: row["metrics"].get("total", {}).get("mean") for row in rows}
    assert ours == {"simgcd": 92_248_064, "legogcd": 92_248_064, "sptnet": 92_353_184, "rlcd": 86_029_824}
    assert {row["key"]: row["published"]["total"] for row in rows}["sptnet"] == 92_353_184
    assert "205,376" in cli("table", "parameters", "--dataset", "digits").stdout


@pytest.mark.usefixtures("few_digits")
def test_a_failing_row_is_noted_and_the_rest_is_shown(cli, monkeypatch):
    from gcdbench_rlcd import RLCD

    original = RLCD.forward

    def forward(self, batch, t):
        if self.config.distill_on == "learnable":
            raise ZeroDivisionError("oops")
        return original(self, batch, t)

    monkeypatch.setattr(RLCD, "forward", forward)
    answer = cli("table", "distillation", "--dataset", "digits", "--seed", "0", "--epochs", "1")
    assert answer.code == 5
    assert "Failed: The method 'rlcd' failed in forward: ZeroDivisionError: oops" in answer.stdout
    assert "1 rows failed" in answer.stderr
    assert "pseudo-base (RLCD)" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("ablaton",), 2, "Did you mean 'ablation'"),
        (("ablation", "--dataset", "digts"), 2, "Did you mean 'digits'"),
        (("none.toml",), 2, "no experiment file"),
        (("estimated-k", "--dataset", "aircraft", "--dry-run"), 2, "no settings for 'aircraft'"),
        (("ablation", "--dry-run", "--latex", "--dataset", "digits"), 2, "not as --latex"),
        (("alpha", "--dataset", "digits", "--set", "method.alpha=1"), 2, "it cannot be set"),
        (("label-ratios", "--dataset", "digits", "--set", "method.alpha=1"), 2, "method.alpha"),
    ],
)
def test_mistakes_are_sentences(arguments, code, words, cli):
    answer = cli("table", *arguments)
    assert answer.code == code
    assert words in answer.stderr


def test_list_experiments(cli):
    rows = cli("list", "experiments", "--json").json()["experiments"]
    assert [row["name"] for row in rows] == sorted(experiment_files())
    assert "ablation" in cli("list", "experiments").stdout


@pytest.fixture
def recorded(some_runs, tmp_path):
    """An experiment whose rows were run elsewhere: there are records, and no data."""
    (tmp_path / "mine.toml").write_text(
        """
[experiment]
title = "Mine"
datasets = ["digits"]
seeds = [0, 1, 2]
metrics = ["all"]
settings = { "train.epochs" = 1 }

[[row]]
key = "rlcd"
label = "RLCD"
method = "rlcd"

[[row]]
key = "other"
label = "Other"
method = "rlcd"
settings = { "method.alpha" = 0.1 }

[[row]]
key = "simgcd"
label = "SimGCD"
method = "simgcd"
settings = { "method.projector_hidden" = 32, "method.projector_out" = 16 }
"""
    )
    return some_runs


def test_a_table_of_records_alone(cli, recorded, monkeypatch):
    from gcdbench.data.datasets.digits import Digits

    def gone(self, part):
        raise AssertionError("the data was looked at")

    monkeypatch.setattr(Digits, "index", gone)
    answer = cli("table", "mine.toml", "--recorded", "--runs", recorded, "--json")
    assert answer.code == 0, answer.stderr
    rows = {row["key"]: row for row in answer.json()["studies"][0]["rows"]}
    assert rows["rlcd"]["metrics"]["all"]["n"] == rows["simgcd"]["metrics"]["all"]["n"] == 2
    assert rows["other"]["reason"] == "There is no record of it."
    ids = {p.name for p in (recorded / "rlcd" / "digits").iterdir() if p.is_dir()}
    assert set(rows["rlcd"]["runs"]) == ids
    assert cli("table", "mine.toml", "--recorded", "--dry-run").code == 2


def test_records_of_other_weights_are_not_mixed_in(cli, recorded, tmp_path):
    """One seed was repeated with other weights, later: the set-up with more seeds is meant."""
    import json
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(recorded, copy)
    run = next(p.parent for p in (copy / "rlcd" / "digits").glob("*/record.json"))
    other = run.with_name("0" * 12)
    shutil.copytree(run, other)
    tree = json.loads((other / "record.json").read_text())
    tree |= {"run_id": "0" * 12, "finished": "2099-01-01T00:00:00+00:00"}
    tree["backbone"]["weights_hash"] = "f" * 16
    (other / "record.json").write_text(json.dumps(tree))
    answer = cli("table", "mine.toml", "--recorded", "--runs", copy, "--json")
    rows = {row["key"]: row for row in answer.json()["studies"][0]["rows"]}
    assert rows["rlcd"]["metrics"]["all"]["n"] == 2
    assert "0" * 12 not in rows["rlcd"]["runs"]
    assert cli("table", "parameters", "--recorded").code == 2


def test_records_from_before_a_setting_existed_have_its_default(cli, recorded, tmp_path):
    """What the method did then is the default now."""
    import json
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(recorded, copy)
    for file in (copy / "rlcd" / "digits").glob("*/record.json"):
        tree = json.loads(file.read_text())
        del tree["config"]["method"]["aux_ce_temp"]
        file.write_text(json.dumps(tree))
    rows = cli("table", "mine.toml", "--recorded", "--runs", copy, "--json").json()["studies"][0]["rows"]
    assert {row["key"]: row["metrics"]["all"]["n"] for row in rows if row["metrics"]}["rlcd"] == 2
    for file in (copy / "rlcd" / "digits").glob("*/record.json"):
        tree = json.loads(file.read_text())
        del tree["config"]["method"]["teacher_temp_epochs"]  # 5 by the preset, 30 by default
        file.write_text(json.dumps(tree))
    rows = cli("table", "mine.toml", "--recorded", "--runs", copy, "--json").json()["studies"][0]["rows"]
    assert next(row for row in rows if row["key"] == "rlcd")["reason"] == "There is no record of it."


def test_compare_takes_the_settings_of_an_experiment(cli, recorded):
    answer = cli("compare", "rlcd", "simgcd", "--experiment", "mine.toml", "--runs", recorded, "--json")
    assert answer.code == 0, answer.stderr
    (table,) = answer.json()["comparisons"]
    assert [row["seeds"] for row in table["rows"]] == [[0, 1], [0, 1]]
    text = cli("compare", "rlcd", "simgcd", "--experiment", "mine.toml", "--runs", recorded, "--markdown").stdout
    assert "| rlcd (released)" in text  # what all rows share is not in their names
    assert "All runs have the common settings of the experiment mine.toml." in text
    other = cli("compare", "rlcd", "simgcd", "--experiment", "ablation", "--runs", recorded)
    assert other.code != 0  # no runs on its dataset
