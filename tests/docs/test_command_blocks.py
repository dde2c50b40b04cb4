"""Commands in documents stand in code blocks, where they are also tested."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_command_stands_in_a_paragraph():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "plugins").glob("*/README.md")]
    loose = []
    for page in pages:
        fenced = False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            fenced ^= line.startswith("```")
            if not fenced and line.startswith("gcdbench ") and line.split()[1].isidentifier() and " --" in line:
                loose.append(f"{page.relative_to(ROOT)}:{number}: {line}")
    assert not loose, "\n".join(loose)


def test_every_option_of_run_is_documented():
    from gcdbench.runs.api import RunOptions

    text = (ROOT / "docs/use/python-api.md").read_text(encoding="utf-8")
    assert not [name for name in RunOptions.__annotations__ if f"`{name}`" not in text]


def test_there_is_one_version_number():
    import gcdbench

    assert gcdbench.__version__ not in (ROOT / "CITATION.cff").read_text()
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    assert f"## {gcdbench.__version__}" in (ROOT / "CHANGELOG.md").read_text()
