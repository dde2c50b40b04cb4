"""What SECURITY.md says."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from gcdbench import registry
from gcdbench.errors import DataError, PluginError
from tests.data.test_datasets import open_dataset
from tests.support import trees

ROOT = Path(__file__).parents[2]
SOURCES = [p for folder in ("gcdbench", "plugins") for p in (ROOT / folder).rglob("*.py") if "tests" not in p.parts]


def test_the_tests_and_files_it_names_exist():
    for document in ("SECURITY.md", "README.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        for name in re.findall(r"`(tests/[\w/.]+)`", text):
            assert (ROOT / name).exists(), name


@pytest.mark.parametrize("name", ["../evil", "/abs", "a/b", "..", ".hidden", "a b", "", "a\\b", "x\n", "-rf"])
def test_names_of_plugins_cannot_leave_their_folder(name, monkeypatch):
    entry = EntryPoint(name=name, value="os:system", group="gcdbench.methods")
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    registry.refresh()
    try:
        plugin = registry.get("method", name)
        with pytest.raises(PluginError, match="folders are named after plugins"):
            plugin.load()
    finally:
        monkeypatch.undo()
        registry.refresh()


@pytest.mark.parametrize("name", ["rlcd", "my-method", "v2.1", "UNO+", "k_means"])
def test_ordinary_names_are_fine(name):
    assert registry.NAME.fullmatch(name)


@pytest.mark.parametrize("bad", ["../../../../etc/passwd", "/etc/passwd", "a/../../b.jpg", "C:\\x.jpg", "..\\x.jpg"])
def test_annotation_files_cannot_name_files_elsewhere(bad, tmp_path):
    folder = trees.write_cub(tmp_path, images=False)
    lines = (folder / "images.txt").read_text().splitlines()
    lines[0] = f"1 {bad}"
    (folder / "images.txt").write_text("\n".join(lines))
    with pytest.raises(DataError, match="lies outside"):
        open_dataset("cub", tmp_path).index("train")


def test_nothing_is_ever_passed_through_a_shell_or_evaluated():
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for word in (
            "shell=True",
            "os.system(",
            "os.popen(",
            " eval(",
            " exec(",
            "pickle.load(",
            "pickle.loads(",
            "yaml",
        ):
            assert word not in text, f"{path} has {word}"
        assert "weights_only=False" not in text
        assert "allow_pickle=True" not in text
        for call in re.findall(r"torch\.load\(.*", text):
            assert "weights_only=True" in call, path


def test_every_address_in_the_code_is_https():
    for path in SOURCES:
        for address in re.findall(r"[\"'](\w+)://", path.read_text(encoding="utf-8")):
            assert address in ("https", "env", "ray"), path  # torch's and Ray's ways to name a rendezvous


def test_reports_forbid_scripts():
    page = (ROOT / "gcdbench/report/page.html").read_text(encoding="utf-8")
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page
    assert "<script" not in page
    assert re.findall(r"{{[^}]*\|\s*safe\s*}}", page) == ["{{ style | safe }}"]  # our own style sheet
