from __future__ import annotations

import os

# Tests compare bits, so the number of threads is fixed; one, because two test processes share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The same examples each time, so that a test fails for a change and not by chance; `random` looks for new ones.
settings.register_profile("fixed", derandomize=True)
settings.register_profile("random")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# Stores that tests make never reach the user's cache.
os.environ["GCDBENCH_CACHE"] = tempfile.mkdtemp(prefix="gcdbench-stores-")
atexit.register(shutil.rmtree, os.environ["GCDBENCH_CACHE"], ignore_errors=True)

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of recorded numbers."""
    return GOLDEN


@dataclass
class Answer:
    code: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        return json.loads(self.stdout)


@pytest.fixture
def gcdbench(tmp_path: Path) -> Callable[..., Answer]:
    """The real command in a process of its own, in an empty folder."""

    def call(*arguments: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> Answer:
        clean = {k: v for k, v in os.environ.items() if k != "GCDBENCH_DATA"}
        done = subprocess.run(
            [sys.executable, "-m", "gcdbench", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=cwd or tmp_path,
            env={**clean, "COLUMNS": "200", **(env or {})},
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """The command line in this process: quick, for the many small cases."""
    from gcdbench.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GCDBENCH_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str | Path) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(list(map(str, arguments)))
        text = capsys.readouterr()
        code = stop.value.code
        return Answer(code if isinstance(code, int) else 0, text.out, text.err)

    return call


@pytest.fixture(scope="session")
def _certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from tests.support.serving import make_certificate

    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def certificate(_certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that downloads of this test trust."""
    import ssl

    from gcdbench.data import fetch

    original = fetch._opener
    monkeypatch.setattr(fetch, "_opener", lambda: original(ssl.create_default_context(cafile=str(_certificate[0]))))
    return _certificate


@pytest.fixture(scope="session")
def some_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of both methods on a few digits, two seeds, one epoch. Use together with `few_digits`."""
    from tests.support.runs import fewer_digits, start

    folder = tmp_path_factory.mktemp("some")
    with pytest.MonkeyPatch.context() as patch:
        fewer_digits(patch)
        for method in ("rlcd", "simgcd"):
            start(folder, method, epochs=1, seeds=(0, 1), settings={"eval.every": 1})
    return folder / "runs"


@pytest.fixture
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on `digits` see the first rows only."""
    from tests.support.runs import fewer_digits

    fewer_digits(monkeypatch)


@pytest.fixture
def small_projector(monkeypatch: pytest.MonkeyPatch) -> None:
    """One set of settings must suit both methods."""
    from gcdbench_simgcd.method import SimGCD

    from tests.support.runs import SMALL

    for key, value in SMALL.items():
        monkeypatch.setattr(SimGCD.Config, key.removeprefix("method."), value)
    monkeypatch.setattr("tests.support.runs.SMALL", {})
