"""What the README says is run here: its Python, its example plugin, and every command line parses."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    texts = [README, *(page.read_text(encoding="utf-8") for page in sorted(ROOT.glob("plugins/*/README.md")))]
    lines = [line.strip() for text in texts for line in text.splitlines() if line.startswith("    gcdbench ")]
    return [line.split("  #")[0] for line in lines]


def test_the_readme_has_examples():
    assert len(commands()) >= 6
    assert len(blocks("python")) == 2


def parse_command(command: str) -> None:
    """Parsing a command line checks its options; whether its data is there is another matter."""
    from gcdbench.cli.main import cli

    arguments = shlex.split(command)[1:]
    context = cli.make_context("gcdbench", arguments, resilient_parsing=False)
    name, sub, rest = cli.resolve_command(context, arguments)
    assert sub is not None
    sub.make_context(name, rest, parent=context)


@pytest.mark.parametrize("command", commands())
def test_commands_exist_with_these_options(command):
    parse_command(command)


def test_make_targets_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"(?:`|    )make (\w+)", README)) <= targets


def test_python_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(blocks("python")[1], {})
    assert "runs/rlcd/digits" in capsys.readouterr().out


def test_example_plugin_runs(gcdbench, tmp_path):
    (tmp_path / "my_package.py").write_text(blocks("python")[0])
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    lines = blocks("toml")[0].splitlines()
    assert lines[0] == '[project.entry-points."gcdbench.methods"]'
    (info / "entry_points.txt").write_text("[gcdbench.methods]\n" + lines[1].replace('"', "") + "\n")
    answer = gcdbench(
        *("run", "--method", "mymethod", "--dataset", "digits", "--epochs", "1", "--json"),
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert answer.code == 0, answer.stderr
    assert answer.json()["runs"][0]["metrics"]["all"] > 30


def test_exit_codes_are_documented():
    from gcdbench.errors import EXIT_CODES

    text = (ROOT / "docs/use/run.md").read_text()
    text = text[text.index("Exit codes:") :]
    assert all(f"{code} " in text for code in EXIT_CODES)
