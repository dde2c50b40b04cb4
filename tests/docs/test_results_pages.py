"""Pages of results: written from the committed records, and from nothing else."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from gcdbench.errors import GcdbenchError
from gcdbench.records.record import read_record

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture
def make(tmp_path, monkeypatch):
    """The script, on a copy of the pages that may be spoilt."""
    for source in RESULTS.iterdir():
        if source.is_dir() and source.name != "__pycache__":
            shutil.copytree(source, tmp_path / source.name)
        elif source.is_file():
            shutil.copy(source, tmp_path)
    spec = importlib.util.spec_from_file_location("results_make", tmp_path / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("COLUMNS", "200")
    return module


def test_every_page_is_what_its_records_say(make):
    assert make.pages()
    assert make.main(["--check"]) == 0


def test_a_page_that_drifts_from_its_records_is_noticed(make, tmp_path, capsys):
    file = tmp_path / "cifar10-cpu" / "records.jsonl"
    lines = file.read_text().splitlines()
    found = [json.loads(line) for line in lines]
    number = next(i for i, r in enumerate(found) if r["method"] == "simgcd" and r["config"]["data"]["images"] is None)
    found[number]["metrics"]["all"] += 5
    lines[number] = json.dumps(found[number])
    file.write_text("\n".join(lines) + "\n")
    assert make.main(["--check"]) == 1
    assert "cifar10-cpu.md is not what its records say" in capsys.readouterr().err


def test_records_are_whole_and_name_no_machine(make, tmp_path):
    with make.unpacked(tmp_path / "cifar10-cpu") as runs:
        files = list(runs.glob("*/*/*/record.json"))
        assert len(files) > 50
        for file in files:
            record = read_record(file)  # against the schema
            assert record.backbone["projection"]["dims"] == 256
            assert not record.git["core"]["dirty"]
    for page in make.pages():
        text = (page / "records.jsonl").read_text()
        assert "/tmp" not in text
        assert "/home" not in text
    assert "/root" not in text


def test_collecting_and_commands_that_are_none(make, tmp_path, some_runs):
    folder = tmp_path / "new"
    assert make.main(["collect", "new", str(some_runs)]) == 0
    assert len((folder / "records.jsonl").read_text().splitlines()) == 4
    curves = json.loads((folder / "curves.json").read_text())
    assert all(set(point) >= {"epoch", "all", "ce"} for points in curves.values() for point in points)
    (folder / "text.md").write_text("~~~\n@runs\n~~~\n")
    assert "4 runs" in make.written(folder)
    (folder / "text.md").write_text("~~~\nrm -r\n~~~\n")
    with pytest.raises(GcdbenchError, match="is no command"):
        make.written(folder)
    (folder / "text.md").write_text("~~~\n$ gcdbench compare nobody\n~~~\n")
    with pytest.raises(GcdbenchError, match="ended with 2"):
        make.written(folder)
