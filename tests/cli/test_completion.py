"""What a shell offers when Tab is pressed, through the real command."""

from __future__ import annotations

import pytest

from tests.support.records import record, write


@pytest.fixture
def tab(gcdbench):
    """What is offered for the last word of a command line."""

    def offered(line: str) -> list[str]:
        words = line.split(" ")
        environment = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_GCDBENCH_COMPLETE": "bash_complete"}
        answer = gcdbench(env=environment)
        assert answer.code == 0, answer.stderr
        return [found.partition(",")[2] for found in answer.stdout.split()]

    return offered


def test_plugins_recipes_and_settings(tab):
    assert tab("gcdbench run --method s") == ["simgcd", "sptnet", "supref"]
    assert tab("gcdbench run --method rlcd,leg") == ["rlcd,legogcd"]
    assert set(tab("gcdbench run --method kmeans,rlcd:")) == {"kmeans,rlcd:released", "kmeans,rlcd:paper"}
    assert tab("gcdbench run --method rlcd --recipe r") == ["released"]
    assert tab("gcdbench run --dataset cif") == ["cifar10", "cifar100"]
    assert tab("gcdbench run --backbone dinov") == ["dinov2"]
    assert tab("gcdbench run --set train.ep") == ["train.epochs="]
    assert "method.alpha=" in tab("gcdbench run --method rlcd --set method.al")
    assert tab("gcdbench run --method nothing --recipe r") == []
    assert "ablation" in tab("gcdbench table ab")
    assert tab("gcdbench list k") == ["k-estimators"]


def test_runs(tab, tmp_path):
    for seed in range(2):
        write(record("rlcd", seed, 70.0), tmp_path / "runs")
    folders = [path.parent for path in (tmp_path / "runs").glob("*/*/*/record.json")]
    for folder in folders:
        (folder / "config.json").write_text("{}")
    assert sorted(tab(f"gcdbench show {folders[0].name[:3]}")) == sorted(
        f.name for f in folders if f.name.startswith(folders[0].name[:3])
    )
    assert tab(f"gcdbench show --runs elsewhere {folders[0].name[:3]}") == []
