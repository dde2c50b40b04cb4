"""Real packages for tests: built as wheels and installed into fresh environments, without a download."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_OURS = ("gcdbench", "__editable__")


class Environment:
    """A fresh virtual environment that holds gcdbench's dependencies (linked from this one), but no gcdbench."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.python = folder / "bin" / "python"
        (packages,) = folder.glob("lib/python*/site-packages")
        links = folder / "dependencies"
        links.mkdir()
        for place in site.getsitepackages():
            for entry in Path(place).iterdir():
                if not entry.name.startswith(_OURS) and not (links / entry.name).exists():
                    (links / entry.name).symlink_to(entry)
        (packages / "dependencies.pth").write_text(f"{links}\n")

    def pip(self, *arguments: str | Path) -> None:
        """This environment's packages, by the pip of the one that runs the tests."""
        command = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check", *arguments]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def install(self, wheel: Path) -> None:
        """Without dependencies: they are there."""
        self.pip("install", "--quiet", "--no-deps", "--no-index", wheel)

    def run(self, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        """A command of the environment's Python, which sees nothing of this source tree."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "COV"))}
        clean |= {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        return subprocess.run([self.python, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, env=clean)


def build_wheel(source: Path, into: Path) -> Path:
    """The wheel of a source tree, built from a copy so that nothing is left in the tree."""
    copy = into / f"source-{source.name}"
    ignored = shutil.ignore_patterns(".venv", ".git", "build", "*.egg-info", "__pycache__", "tests", ".*_cache")
    shutil.copytree(source, copy, ignore=ignored)
    before = set(into.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "-w", str(into), str(copy)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = set(into.glob("*.whl")) - before
    return wheel
