"""A real third-party installation: wheels in a fresh environment next to an installed gcdbench."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.packages import ROOT, Environment, build_wheel

pytestmark = pytest.mark.packages

PYPROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "{package}"
version = "1.0"
[project.entry-points."gcdbench.methods"]
{name} = "{module}:Thing"
[tool.setuptools]
py-modules = ["{module}"]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("third-party")


@pytest.fixture(scope="module")
def environment(place: Path) -> Environment:
    """gcdbench and SimGCD as installed packages."""
    found = Environment(place / "env")
    for source in (ROOT, ROOT / "plugins" / "simgcd"):
        (place / source.name).mkdir()
        found.install(build_wheel(source, place / source.name))
    return found


def methods(environment: Environment, place: Path) -> dict[str, dict]:
    done = environment.run("-m", "gcdbench", "list", "methods", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)["methods"]}


def small_package(place: Path, name: str, package: str, code: str) -> Path:
    module = package.replace("-", "_")
    folder = place / package
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT.format(name=name, package=package, module=module))
    (folder / f"{module}.py").write_text(code)
    (place / f"wheel-{package}").mkdir()
    return build_wheel(folder, place / f"wheel-{package}")


def test_a_plugin_comes_runs_is_compared_and_goes(environment, place):
    assert set(methods(environment, place)) == {"simgcd"}
    done = environment.run("-m", "gcdbench", "new-plugin", "mine", cwd=place)
    assert done.returncode == 0, done.stderr
    (place / "wheels").mkdir()
    environment.install(build_wheel(place / "gcdbench-mine", place / "wheels"))
    found = methods(environment, place)
    assert found["mine"]["status"] == "ok"
    assert found["mine"]["package"] == "gcdbench-mine"

    run = ("-m", "gcdbench", "run", "--method", "mine,simgcd", "--dataset", "digits", "--epochs", "2", "--seed", "0,1")
    done = environment.run(*run, "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)["runs"]
    assert [r["method"] for r in records] == ["mine", "mine", "simgcd", "simgcd"]
    assert all(r["metrics"]["all"] > 30 for r in records)
    written = json.loads((place / records[0]["dir"] / "record.json").read_text())
    assert written["plugin"] == {"package": "gcdbench-mine", "version": "0.1.0"}
    assert written["git"] == {"core": None, "plugin": None}

    compare = ("-m", "gcdbench", "compare", "mine", "simgcd", "--dataset", "digits", "--epochs", "2", "--json")
    done = environment.run(*compare, cwd=place)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["comparisons"][0]["rows"]
    assert [row["method"] for row in rows] == ["mine", "simgcd"]

    environment.pip("uninstall", "--yes", "--quiet", "gcdbench-mine")
    assert set(methods(environment, place)) == {"simgcd"}
    done = environment.run("-m", "gcdbench", "run", "--method", "mine", "--dataset", "digits", cwd=place)
    assert done.returncode == 2
    assert "There is no method 'mine'." in done.stderr


def test_a_broken_plugin_and_a_name_clash_are_told_and_hurt_no_one(environment, place):
    environment.install(small_package(place, "sad", "sad-plugin", "raise RuntimeError('no luck today')\n"))
    clash = "from gcdbench_simgcd import SimGCD as Thing\n"
    environment.install(small_package(place, "simgcd", "other-simgcd", clash))
    environment.install(small_package(place, "fine", "fine-plugin", clash))
    found = methods(environment, place)
    assert found["sad"]["status"] == "broken"
    assert "no luck today" in found["sad"]["reason"]
    assert found["simgcd"]["status"] == "broken"
    assert "registered as a method by both" in found["simgcd"]["reason"]
    assert found["fine"]["status"] == "ok"
    run = ("--dataset", "digits", "--epochs", "1", "--json")
    for name, code, words in (("sad", 5, "no luck today"), ("simgcd", 5, "Uninstall one"), ("fine", 0, "")):
        done = environment.run("-m", "gcdbench", "run", "--method", name, *run, cwd=place)
        assert done.returncode == code, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    for package in ("sad-plugin", "other-simgcd", "fine-plugin"):
        environment.pip("uninstall", "--yes", "--quiet", package)
    assert set(methods(environment, place)) == {"simgcd"}
