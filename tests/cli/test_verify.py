"""`gcdbench verify` and `gcdbench score` on runs that were finished, edited and damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import gcdbench as package


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    package.run("kmeans,gcd", "digits", seeds=[0, 1], epochs=1, runs=folder / "runs", settings={"eval.batch_size": 256})
    return folder / "runs"


@pytest.fixture
def runs(finished, tmp_path) -> Path:
    shutil.copytree(finished, tmp_path / "runs")
    return tmp_path / "runs"


def records(runs: Path, method: str = "kmeans") -> list[Path]:
    return sorted(runs.glob(f"{method}/digits/*/record.json"))


def edit(path: Path, **metrics: float) -> None:
    data = json.loads(path.read_text())
    data["metrics"].update(metrics)
    path.write_text(json.dumps(data))


def test_untouched_runs_are_verified(cli, runs):
    answer = cli("verify", "--runs", runs, "--json")
    assert answer.code == 0, answer.stderr
    found = answer.json()
    assert found["ok"]
    assert len(found["runs"]) == 4
    for verdict in found["runs"]:
        record = json.loads((Path(verdict["folder"]) / "record.json").read_text())
        assert verdict["checked"] == len(record["metrics"]) >= 10
        assert not verdict["problems"]
        assert not verdict["notes"]
    one = records(runs)[0].parent
    answer = cli("verify", one.name[:6], "--runs", runs)
    assert answer.code == 0
    assert one.name in answer.stdout
    assert "yes" in answer.stdout


def test_an_edited_metric_is_named(cli, runs):
    path = records(runs)[0]
    true = json.loads(path.read_text())["metrics"]["all"]
    edit(path, all=99.9)
    answer = cli("verify", path.parent, "--runs", runs)
    assert answer.code == 1
    assert f"all is 99.9 in the record, but its predictions give {true:g}" in answer.stdout
    assert "have been changed since the run was finished" in answer.stdout
    assert "1 of 1 records do not say" in answer.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("show", "RUN"),
        ("results",),
        ("compare", "kmeans", "gcd", "--dataset", "digits"),
        ("table", "TABLE", "--recorded"),
    ],
)
def test_no_command_prints_a_record_that_was_edited(command, cli, runs, tmp_path):
    for path in records(runs):
        edit(path, all=99.9)
    table = '[experiment]\ntitle = "T"\ndatasets = ["digits"]\nseeds = [0, 1]\nmethods = ["kmeans"]\n'
    (tmp_path / "table.toml").write_text(table)
    swap = {"RUN": records(runs)[0].parent.name, "TABLE": str(tmp_path / "table.toml")}
    answer = cli(*(swap.get(word, word) for word in command), "--runs", runs)
    assert "99.9" not in answer.stdout
    assert "The metrics in" in answer.stderr
    assert "gcdbench verify" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_changed_predictions_are_noticed_too(cli, runs):
    path = records(runs)[0].parent / "predictions.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["cluster"] = np.roll(arrays["cluster"], 1)
    np.savez_compressed(path, **arrays)
    answer = cli("show", path.parent.name, "--runs", runs)
    assert answer.code == 1
    assert f"The predictions in {path} have been changed" in answer.stderr
    answer = cli("verify", path.parent.name, "--runs", runs)
    assert answer.code == 1
    assert "all is " in answer.stdout


def test_an_edit_that_hides_itself_is_found_by_scoring(cli, runs):
    """Whoever computes the hash again does not fool the predictions."""
    from gcdbench.records.record import hashes_of

    path = records(runs)[0]
    data = json.loads(path.read_text())
    data["metrics"]["novel"] += 3
    data["hashes"] = hashes_of(path.parent, data["metrics"])
    path.write_text(json.dumps(data))
    assert cli("show", path.parent.name, "--runs", runs).code == 0
    answer = cli("verify", path.parent.name, "--runs", runs, "--json")
    assert answer.code == 1
    (verdict,) = answer.json()["runs"]
    assert len(verdict["problems"]) == 1
    assert verdict["problems"][0].startswith("novel is ")


def test_what_cannot_be_verified_is_a_sentence(cli, runs, tmp_path):
    one, two = (path.parent for path in records(runs))
    (one / "predictions.npz").write_bytes(b"nothing")
    (two / "predictions.npz").unlink()
    answer = cli("verify", one.name, two.name, "--runs", runs)
    assert answer.code == 1
    assert "cannot be read" in answer.stdout
    assert "cannot be scored again: the file does not exist" in answer.stdout
    assert "Traceback" not in answer.stdout + answer.stderr
    assert cli("verify", "nosuchrun", "--runs", runs).code == 2
    assert "no finished runs" in cli("verify", "--runs", tmp_path / "empty").stderr
    (one / "record.json").unlink()
    assert "unfinished" in cli("verify", one.name, "--runs", runs).stderr


def test_records_of_earlier_versions_are_scored_with_a_note(cli, runs):
    path = records(runs)[0]
    data = json.loads(path.read_text())
    del data["hashes"]
    path.write_text(json.dumps({**data, "schema": 4}))
    answer = cli("verify", path.parent.name, "--runs", runs, "--json")
    assert answer.code == 0
    assert "no hashes" in answer.json()["runs"][0]["notes"][0]


def test_a_record_whose_hashes_were_taken_away_is_refused(cli, runs):
    path = records(runs)[0]
    data = json.loads(path.read_text())
    data["metrics"]["all"], data["hashes"] = 99.9, None
    path.write_text(json.dumps(data))
    answer = cli("show", path.parent.name, "--runs", runs)
    assert answer.code == 1
    assert "it has no hashes" in answer.stderr


def test_records_that_do_not_say_who_gave_a_metric_are_scored_all_the_same(cli, runs):
    """As those of the first schema."""
    path = records(runs)[0]
    data = json.loads(path.read_text())
    del data["hashes"]
    data["evaluators"] = {name: {**facts, "metrics": []} for name, facts in list(data["evaluators"].items())[:1]}
    data["metrics"]["unheard_of"] = 3.0
    path.write_text(json.dumps({**data, "schema": 4}))
    answer = cli("verify", path.parent.name, "--runs", runs, "--json")
    assert answer.code == 0, answer.stdout
    (verdict,) = answer.json()["runs"]
    assert verdict["checked"] == len(data["metrics"]) - 1
    assert any("which evaluator gave unheard_of" in note for note in verdict["notes"])


def test_score_reads_the_predictions_of_a_run(cli, runs):
    path = records(runs, "gcd")[0]
    answer = cli("score", path.parent / "predictions.npz", "--json")
    assert answer.code == 0, answer.stderr
    found, record = answer.json(), json.loads(path.read_text())
    for side in ("all", "base", "novel"):
        assert 100 * found["v2"][side] == pytest.approx(record["metrics"][side])
    path.unlink()
    answer = cli("score", path.parent / "predictions.npz")
    assert answer.code == 4
    assert "record.json beside it" in answer.stderr
    with np.load(path.parent / "predictions.npz") as archive:
        arrays = {name: values for name, values in archive.items() if name != "target"}
    np.savez(path.parent / "predictions.npz", **arrays)
    answer = cli("score", path.parent / "predictions.npz")
    assert answer.code == 2
    assert "true classes" in answer.stderr
