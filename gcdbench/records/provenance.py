"""Where results come from: versions of the packages and the state of the source they were made with."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gcdbench

PACKAGES = ("torch", "timm", "numpy", "scipy", "scikit-learn", "pillow")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide results."""
    # Of the code that runs: what an editable installation says is as old as the installation.
    found = {"python": platform.python_version(), "gcdbench": gcdbench.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def package_folder(target: str) -> Path | None:
    """The folder of the top-level package of `module.path` or `module.path:object`; None for a single file.

    Nothing is imported.
    """
    try:
        spec = find_spec(target.partition(":")[0].partition(".")[0])
    except (ImportError, ValueError):
        return None
    locations = list(spec.submodule_search_locations or []) if spec else []
    return Path(locations[0]) if locations else None


def git_state(folder: Path | None) -> dict[str, Any] | None:
    """Commit and whether files below ``folder`` differ from it; None where the folder is not under version control.

    A package installed into an environment that happens to lie inside a repository is not part of it: a file of the
    package must be tracked.
    """
    if folder is None:
        return None
    tracked = _git(folder, "ls-files", "--", "*.py")
    commit = _git(folder, "rev-parse", "HEAD")
    if not tracked or not commit:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--", "."))}


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None where it does not answer."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
