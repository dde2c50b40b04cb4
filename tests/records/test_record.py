"""The record's written schema, its versions, and what happens to damaged ones."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcdbench.errors import GcdbenchError
from gcdbench.records.find import read_runs
from gcdbench.records.provenance import git_state, package_folder
from gcdbench.records.record import SCHEMA, Record, read_record
from tests.support.records import record, write
from tests.support.runs import start

pytestmark = pytest.mark.usefixtures("few_digits")

WRITTEN = json.loads((resources.files("gcdbench.records") / "record.schema.json").read_text())


@pytest.mark.parametrize("method", ["rlcd", "simgcd"])
def test_a_real_record_keeps_the_written_schema(method, tmp_path):
    made = start(tmp_path, method, epochs=1, settings={"eval.every": 1})[0]
    data = json.loads((Path(made.dir) / "record.json").read_text())
    jsonschema.Draft202012Validator.check_schema(WRITTEN)
    jsonschema.validate(data, WRITTEN)
    assert data["flops_per_step"]["trunk"] > 0
    assert data["flops_per_step"]["method"] > 0
    assert data["world_size"] == 1
    assert data["evaluators"]["cluster_accuracy"]["version"] == 1
    assert {"all", "base", "novel"} <= set(data["evaluators"]["cluster_accuracy"]["metrics"])
    named = [m for e in data["evaluators"].values() for m in e["metrics"]]
    assert sorted(named) == sorted(data["metrics"])
    assert set(data["timings"]) == {"prepare", "train", "predict", "evaluate"}
    assert data["chosen"] == (["train.epochs", "eval.every"] if method == "rlcd" else data["chosen"])
    assert read_record(Path(made.dir) / "record.json").metrics == made.metrics


def test_the_schema_names_every_field():
    names = {f.name for f in dataclasses.fields(Record)}
    assert names == set(WRITTEN["properties"]) == set(WRITTEN["required"])
    assert WRITTEN["properties"]["schema"]["const"] == SCHEMA


def test_version_1_is_read_and_completed(tmp_path):
    data = record("rlcd", 3).as_dict()
    for new in ("finished", "evaluators", "chosen", "flops_per_step", "world_size", "git", "lanes", "hashes"):
        del data[new]
    data["schema"] = 1
    data["sources"] = {"train.epochs": "command line", "method.alpha": "--set", "train.lr": "preset paper/cub"}
    (tmp_path / "record.json").write_text(json.dumps(data))
    found = read_record(tmp_path / "record.json")
    assert found.schema == SCHEMA
    assert found.chosen == ["method.alpha", "train.epochs"]
    assert found.flops_per_step is None
    assert found.evaluators["cluster_accuracy"]["version"] == 1
    assert found.dir == str(tmp_path)


def test_version_2_is_read_and_completed(tmp_path):
    data = {**record("rlcd", 3).as_dict(), "schema": 2}
    del data["lanes"], data["k_estimate"], data["hashes"]
    (tmp_path / "record.json").write_text(json.dumps(data))
    found = read_record(tmp_path / "record.json")
    assert (found.schema, found.lanes, found.k_estimate) == (SCHEMA, 1, None)


def test_version_3_is_read_and_completed(tmp_path):
    data = {**record("rlcd", 3).as_dict(), "schema": 3}
    del data["k_estimate"], data["hashes"]
    (tmp_path / "record.json").write_text(json.dumps(data))
    assert read_record(tmp_path / "record.json").k_estimate is None


def test_version_4_is_read_and_completed(tmp_path):
    data = {**record("rlcd", 3).as_dict(), "schema": 4}
    del data["hashes"]
    (tmp_path / "record.json").write_text(json.dumps(data))
    found = read_record(tmp_path / "record.json")
    assert (found.schema, found.hashes) == (SCHEMA, None)


@pytest.mark.parametrize("version", [0, 6, "2", None])
def test_other_versions_are_refused_with_a_sentence(version, tmp_path):
    (tmp_path / "record.json").write_text(json.dumps({**record().as_dict(), "schema": version}))
    with pytest.raises(GcdbenchError, match=f"has schema {version}; this gcdbench reads schemas 1 to 5"):
        read_record(tmp_path / "record.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metrics": {"all": "high"}}, "metrics.all: 'high' is not of type 'number'"),
        ({"metrics": {"all": float("nan")}}, "it holds NaN"),
        ({"metrics": [1]}, "metrics: [1] is not of type 'object'"),
        ({"seed": True}, "seed: True is not of type 'integer'"),
        ({"flops_per_step": 3}, "flops_per_step: 3 is not of type 'object', 'null'"),
        ({"surprise": 1}, "surprise"),
        ({"data": {}}, "data: 'labelled' is a required property"),
        ({"config": {"data": 3}}, "config"),
        ({"protocol": {}}, "protocol"),
        ({"fingerprint": "0" * 16}, "its fingerprint is not that of its protocol"),
    ],
)
def test_damaged_records_are_sentences(change, words, tmp_path):
    (tmp_path / "record.json").write_text(json.dumps({**record().as_dict(), **change}))
    with pytest.raises(GcdbenchError, match="cannot be read") as caught:
        read_record(tmp_path / "record.json")
    assert words in str(caught.value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(key=st.sampled_from([f.name for f in dataclasses.fields(Record)]), value=_JSON, version=st.sampled_from([1, 2]))
def test_any_value_in_any_field_is_read_or_refused(key, value, version, tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "record.json"
    path.write_text(json.dumps({**record().as_dict(), "schema": version, key: value}))
    try:
        found = read_record(path)
    except GcdbenchError as fault:
        found = fault
    assert isinstance(found, Record) or str(path) in str(found)


@given(content=st.binary(max_size=200))
def test_any_bytes_are_refused(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "record.json"
    path.write_bytes(content)
    with pytest.raises(GcdbenchError):
        read_record(path)


def test_reading_all_runs_skips_what_cannot_be_read(tmp_path):
    good = write(record("rlcd", 0), tmp_path)
    bad = write(record("rlcd", 1), tmp_path)
    (bad / "record.json").write_text("{")
    unfinished = write(record("rlcd", 2), tmp_path)
    (unfinished / "record.json").unlink()
    records, waiting, faults = read_runs(tmp_path)
    assert [r.dir for r in records] == [str(good)]
    assert waiting == [unfinished]
    assert len(faults) == 1
    assert str(bad) in faults[0]


def test_training_time_is_summed_over_processes(tmp_path):
    from gcdbench.system.observer import Observer

    class Stop(Observer):
        def step(self, t):
            if t.epoch == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, epochs=3, observer=Stop())
    made = start(tmp_path, epochs=3)[0]
    lines = [json.loads(x) for x in (Path(made.dir) / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    assert made.timings["train"] == pytest.approx(sum(x["seconds"] for x in lines), abs=2e-3)


def test_git_state(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "code.py").write_text("x = 1\n")
    assert git_state(package) is None
    assert git_state(None) is None

    def git(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    # Inside a repository but not part of it, as an environment in a working copy is.
    assert git_state(package) is None
    git("add", "package")
    git("commit", "-qm", "x")
    state = git_state(package)
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    (tmp_path / "elsewhere.txt").write_text("x")
    assert git_state(package)["dirty"] is False
    (package / "code.py").write_text("x = 2\n")
    assert git_state(package)["dirty"] is True


def test_the_source_of_core_and_plugin_is_recorded(tmp_path):
    import gcdbench_rlcd

    import gcdbench

    made = start(tmp_path, epochs=1)[0]
    assert made.git == {
        "core": git_state(Path(gcdbench.__file__).parent),
        "plugin": git_state(Path(gcdbench_rlcd.__file__).parent),
    }
    # Both come from one working copy, so either both are under git or none is.
    assert (made.git["core"] is None) == (made.git["plugin"] is None)


def test_package_folder():
    assert package_folder("gcdbench_rlcd:RLCD").name == "gcdbench_rlcd"
    assert package_folder("gcdbench.records.record").name == "gcdbench"
    assert package_folder("no_such_package.module") is None
