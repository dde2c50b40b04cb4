"""`gcdbench new-plugin`: what it writes passes its own tests at once, whatever the kind."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gcdbench.testing.scaffold.write import KINDS, words


def install(folder: Path, into: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "--target", str(into), str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.packages
@pytest.mark.parametrize("kind", [*KINDS, "from another"])
def test_a_new_plugin_passes_its_own_tests(kind, gcdbench, tmp_path):
    how = ("my-derived", "--from", "simgcd") if kind == "from another" else (f"my-{kind}", "--kind", kind)
    answer = gcdbench("new-plugin", *how, "--folder", "made", "--json")
    assert answer.code == 0, answer.stderr
    written = answer.json()["files"]
    assert {"pyproject.toml", "README.md", "LICENSE", ".github/workflows/check.yml"} <= set(written)
    install(tmp_path / "made", tmp_path / "installed")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error::pytest.PytestWarning"],
        capture_output=True,
        text=True,
        cwd=tmp_path / "made",
        env={**clean, "PYTHONPATH": str(tmp_path / "installed")},
    )
    assert done.returncode == 0, done.stdout
    assert "gcdbench: " in done.stdout
    assert " 0 failed, 0 failed as expected" in done.stdout


def test_a_derived_method_inherits_recipes_and_presets(gcdbench, tmp_path, monkeypatch):
    answer = gcdbench("new-plugin", "mine", "--from", "rlcd", "--folder", "made")
    assert answer.code == 0, answer.stderr
    assert 'dependencies = ["gcdbench", "gcdbench-rlcd"]' in (tmp_path / "made/pyproject.toml").read_text()
    site = tmp_path / "made/gcdbench_mine-0.1.dist-info"
    site.mkdir()
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: gcdbench-mine\nVersion: 0.1\n")
    (site / "entry_points.txt").write_text("[gcdbench.methods]\nmine = gcdbench_mine:Mine\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "made"))
    plans = [
        gcdbench("run", "--method", name, "--dataset", "digits", "--dry-run", "--json").json()["plan"][0]
        for name in ("mine", "rlcd")
    ]
    assert plans[0]["recipe"] == plans[1]["recipe"] == "released"
    assert plans[0]["presets"] == plans[1]["presets"]
    own = plans[0]["config"]["method"]
    assert own.pop("scale") == 1.0
    assert own == plans[1]["config"]["method"]
    other = gcdbench("new-plugin", "more", "--from", "rlcdd")
    assert other.code == 2
    assert "Did you mean 'rlcd'" in other.stderr
    assert gcdbench("new-plugin", "more", "--from", "rlcd", "--kind", "dataset").code == 2


def test_a_method_is_one_file_and_three_lines(gcdbench, tmp_path):
    answer = gcdbench("new-plugin", "mine")
    assert answer.code == 0, answer.stderr
    folder = tmp_path / "gcdbench-mine"
    assert [f.name for f in folder.rglob("*.py")].count("__init__.py") == 1
    assert (folder / "gcdbench_mine/presets/default.toml").is_file()
    groups = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    assert groups == {"gcdbench.methods": {"mine": "gcdbench_mine:Mine"}}
    odd = gcdbench("new-plugin", "a.b+c", "--folder", "odd")
    assert odd.code == 0, odd.stderr
    groups = tomllib.loads((tmp_path / "odd/pyproject.toml").read_text())["project"]["entry-points"]
    assert groups == {"gcdbench.methods": {"a.b+c": "gcdbench_a_b_c:ABC"}}
    assert "pip install -e gcdbench-mine" in answer.stdout
    assert "gcdbench check mine --kind method" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("../evil",), "cannot be the name of a plugin"),
        (("a b",), "cannot be the name of a plugin"),
        (("simgcd",), "There is a method 'simgcd' already (gcdbench-simgcd)"),
        (("SimGCD",), "There is a method 'SimGCD' already (gcdbench-simgcd)"),
        (("cub200", "--kind", "dataset"), "There is a dataset 'cub200' already (cub)"),
        (("baselines",), "A package gcdbench-baselines or a module gcdbench_baselines is installed already"),
        (("fine", "--kind", "methot"), "Did you mean 'method'"),
        (("fine", "--folder", "."), "exists already"),
    ],
)
def test_mistakes_are_told(arguments, said, cli, tmp_path):
    answer = cli("new-plugin", *arguments)
    assert answer.code == 2
    assert said in answer.stderr
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_when_writing_fails(cli, tmp_path, monkeypatch):
    def full(self, *_, **__):
        raise OSError(28, "No space left on device", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        answer = cli("new-plugin", "mine")
    assert answer.code == 1
    assert "disk is full" in answer.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "package", "module", "cls"),
    [
        ("rs+", "gcdbench-rs", "gcdbench_rs_", "Rs"),
        ("my.new-method", "gcdbench-my-new-method", "gcdbench_my_new_method", "MyNewMethod"),
        ("2stage", "gcdbench-2stage", "gcdbench_2stage", "Plugin2stage"),
        ("muGCD", "gcdbench-mugcd", "gcdbench_mugcd", "MuGCD"),
    ],
)
def test_names_become_packages_modules_and_classes(name, package, module, cls):
    found = words(name)
    assert (found["package"], found["module"], found["cls"]) == (package, module, cls)
    assert found["module"].isidentifier()
    assert found["cls"].isidentifier()
    assert words(name, "dataset")["package"] == f"{package}-dataset"
