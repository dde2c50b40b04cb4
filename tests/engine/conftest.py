from __future__ import annotations

import pytest

from tests.engine.runs import SMALL


@pytest.fixture(autouse=True)
def _few(few_digits):
    """Every test here runs on few rows."""


@pytest.fixture
def small_projector(monkeypatch):
    """One set of settings must suit both methods."""
    from gcdbench_simgcd.method import SimGCD

    for key, value in SMALL.items():
        monkeypatch.setattr(SimGCD.Config, key.removeprefix("method."), value)
    monkeypatch.setattr("tests.engine.runs.SMALL", {})
