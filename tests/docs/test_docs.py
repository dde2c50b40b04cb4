"""The pages in docs/: references equal the source, and the tutorial's code is run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gcdbench.registry import Plugin
from gcdbench.testing.kit import Report
from gcdbench.testing.subject import session_of
from tests.docs.test_readme import parse_command

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIAL = (DOCS / "extend/write-a-method.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TUTORIAL, flags=re.DOTALL)


def test_references_are_those_of_the_source(tmp_path):
    """In a process of its own: click remembers how a command was first called."""
    shutil.copytree(DOCS, tmp_path / "docs")
    for part in ("contracts.py", "config/sections.py", "records/record.schema.json", "toolbox"):
        source, target = DOCS.parent / "gcdbench" / part, tmp_path / "gcdbench" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    check = [sys.executable, str(tmp_path / "docs/generate.py"), "--check", "--quick"]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (tmp_path / "docs/extend/checks.md").write_text("something else")
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 1
    assert "extend/checks.md in docs/ differ from the source; `make docs`" in done.stderr


def test_references_are_complete():
    text = (DOCS / "extend/contracts.md").read_text()
    for name in ("Method", "Dataset", "Evaluator", "KEstimator", "Pool", "Batch", "Losses", "Prediction", "Tracker"):
        assert f"### `{name}`" in text
    assert "required: predict(pool: Pool) -> Prediction" in text
    commands = (DOCS / "reference/commands.md").read_text()
    for name in ("run", "compare", "estimate-k", "new-plugin", "check", "data fetch", "cache list"):
        assert f"## gcdbench {name}\n" in commands


def test_links_between_pages_lead_somewhere():
    for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]:
        if page.name == "text.md":  # becomes a page one folder up
            continue
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page.name, target)


PAGES = [page for page in DOCS.rglob("*.md") if "results" not in page.parts]
COMMANDS = sorted(
    {
        line.strip().split("  #")[0]
        for p in PAGES
        for line in p.read_text().splitlines()
        if line.startswith("    gcdbench ")
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist_with_these_options(command):
    parse_command(command)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Writes a version of the tutorial's method and what registers it."""

    def write(code: str) -> Path:
        package = tmp_path / "gcdbench_prior"
        (package / "presets").mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(code)
        (package / "presets/default.toml").write_text(blocks("toml")[1])
        info = tmp_path / "prior-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: prior\nVersion: 1.0\n")
        groups = tomllib.loads(blocks("toml")[0])["project"]["entry-points"]
        lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in groups.items()]
        (info / "entry_points.txt").write_text("".join(lines))
        return tmp_path

    return write


@pytest.mark.parametrize(("version", "base", "novel"), [(0, 90, 0), (1, 90, 30)])
def test_the_tutorials_method_runs(version, base, novel, installed, gcdbench, tmp_path):
    folder = installed(blocks("python")[version])
    arguments = ("run", "--method", "prior", "--dataset", "digits", "--epochs", "3", "--json")
    answer = gcdbench(*arguments, env={"PYTHONPATH": str(folder)})
    assert answer.code == 0, answer.stderr
    (run,) = answer.json()["runs"]
    metrics = run["metrics"]
    config = json.loads((tmp_path / run["dir"] / "config.json").read_text())
    assert config["train"]["batch_size"] == 64  # of the preset
    assert metrics["ob"] > base
    assert metrics["novel"] >= novel


def test_the_tutorials_method_is_sound(installed, monkeypatch):
    folder = installed(blocks("python")[1])
    monkeypatch.syspath_prepend(str(folder))
    report = Report(
        "method", "prior", tuple(session_of(Plugin("method", "prior", "gcdbench_prior:Prior", "a", "1", "")).all())
    )
    assert report.ok, report.summary()


def test_the_other_examples_are_code(installed, monkeypatch):
    folder = installed(blocks("python")[1])
    monkeypatch.syspath_prepend(str(folder))
    import gcdbench_prior

    ctx = dict(vars(gcdbench_prior))
    exec(blocks("python")[2], ctx)
    from gcdbench.testing.kit import checks_of

    assert set(ctx["Declared"].expected_failures) <= set(checks_of("method"))
    assert "parametrize_checks" in blocks("python")[3]
    assert set(tomllib.loads(blocks("toml")[1])) == {"default", "dataset"}


def test_no_stray_brackets_in_the_contracts():
    for row in re.findall(r"^\| `\w+` \| `([^`]*)` \|", (DOCS / "extend/contracts.md").read_text(), flags=re.MULTILINE):
        assert row.count("[") == row.count("]"), row


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 250
