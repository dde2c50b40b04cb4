"""The number of classes from a K estimator: in runs, in the record, in the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gcdbench
from gcdbench import registry
from gcdbench.contracts import KEstimate
from gcdbench.errors import PluginError, UsageError
from gcdbench.records.record import read_record
from tests.support.runs import start

pytestmark = pytest.mark.usefixtures("few_digits")


@pytest.fixture
def max_acc(monkeypatch):
    """The estimator with what it was told, and how often."""
    cls = registry.load("k-estimator", "max-acc")
    seen = []
    original = cls.estimate

    def estimate(self, pool, task, largest):
        seen.append((task.num_base, task.num_classes, largest, bool((pool.target[~pool.labelled] == -1).all())))
        return original(self, pool, task, largest)

    monkeypatch.setattr(cls, "estimate", estimate)
    return seen


def test_a_run_with_an_estimated_number(tmp_path, max_acc):
    cache = tmp_path / "cache"
    records = start(tmp_path, "rlcd:paper,rlcd:released", epochs=1, k="max-acc", seeds=(0, 1), cache=cache)
    assert len(records) == 4
    # Once for all runs, without the true number of classes or a hidden label.
    assert max_acc == [(5, 5, 133, True)]
    one = read_record(Path(records[0].dir) / "record.json")
    assert one.protocol["k_source"] == "estimated"
    assert one.protocol["k"] == one.k_estimate["k"]
    assert one.k_estimate["estimator"] == "max-acc"
    assert one.k_estimate["package"].startswith("gcdbench-baselines ")
    assert one.k_estimate["scores"][str(one.k_estimate["k"])] == max(one.k_estimate["scores"].values())
    assert one.config["data"] == {**one.config["data"], "k": None, "k_from": "max-acc"}
    assert len({r.fingerprint for r in records}) == 1
    # Another process takes it from the cache, and finds the run.
    again = start(tmp_path, "rlcd", recipe="paper", epochs=1, k="max-acc", seeds=(0,), cache=cache)
    assert (again[0].run_id, len(max_acc)) == (records[0].run_id, 1)
    given = start(tmp_path, "rlcd", recipe="paper", epochs=1, k=one.k_estimate["k"], seeds=(0,), cache=cache)
    assert given[0].run_id != one.run_id
    assert given[0].protocol["k_source"] == "given"
    assert given[0].metrics == one.metrics


@pytest.mark.parametrize("damage", ["", "{", '{"k": "many"}', "[]"])
def test_a_damaged_estimate_is_made_again(damage, tmp_path, max_acc):
    cache = tmp_path / "cache"
    first = start(tmp_path, "simgcd", epochs=1, k="max-acc", cache=cache)[0]
    (file,) = cache.glob("estimates/*/estimate.json")
    file.write_text(damage)
    second = start(tmp_path, "simgcd", epochs=1, k="max-acc", cache=cache)[0]
    assert (first.run_id, len(max_acc)) == (second.run_id, 2)


@pytest.mark.parametrize(
    ("answer", "words"),
    [(KEstimate(4), "answered 4, which is not from 5 to 133"), (KEstimate(7.0), "whole number"), (7, "KEstimate")],
)
def test_answers_are_checked(answer, words, tmp_path, monkeypatch):
    monkeypatch.setattr(registry.load("k-estimator", "cms"), "estimate", lambda *_: answer)
    with pytest.raises(PluginError, match=words):
        start(tmp_path, "simgcd", epochs=1, k="cms", cache=tmp_path / "cache")


def test_mistakes_are_told(tmp_path):
    with pytest.raises(UsageError, match="Did you mean 'max-acc'"):
        start(tmp_path, "simgcd", epochs=1, k="max-ac")
    with pytest.raises(UsageError, match="give one of them"):
        start(tmp_path, "simgcd", epochs=1, settings={"data.k": 7, "data.k_from": "max-acc"})
    with pytest.raises(UsageError, match="Without labelled rows"):
        start(tmp_path, "simgcd", epochs=1, k="max-acc", label_ratio=0.0)


def test_a_number_on_the_command_line_takes_the_place_of_an_estimator_in_a_file(tmp_path):
    (tmp_path / "run.toml").write_text('[data]\nk_from = "max-acc"\n')
    (record,) = gcdbench.run("simgcd", "digits", k=11, epochs=1, config=tmp_path / "run.toml", runs=tmp_path / "runs")
    assert (record.protocol["k"], record.protocol["k_source"], record.k_estimate) == (11, "given", None)


def test_the_command(cli, tmp_path):
    arguments = ("estimate-k", "--dataset", "digits", "--cache", tmp_path / "cache", "--largest", "30")
    answer = cli(*arguments, "--json")
    assert answer.code == 0, answer.stderr
    data = json.loads(answer.stdout)
    assert (data["dataset"], data["estimator"], data["base_classes"], data["true_k"]) == ("digits", "max-acc", 5, 10)
    assert 5 <= data["k"] <= 30
    assert all(5 <= int(k) <= 30 for k in data["scores"])
    text = cli(*arguments)
    assert f"K = {data['k']} (max-acc, 5 base classes; the data set says 10)." in text.stdout
    wrong = cli("estimate-k", "--dataset", "digits", "--largest", "3")
    assert wrong.code == 2
    assert "there are 5 base classes already" in wrong.stderr


def test_a_folder_without_a_number_names_the_estimators(cli, tmp_path):
    from tests.training.test_training_faults import photos

    photos(tmp_path / "photos")
    answer = cli("run", "--method", "simgcd", "--dataset", "folder", "--data-root", "photos")
    assert answer.code == 2
    assert "--k ESTIMATOR" in answer.stderr
