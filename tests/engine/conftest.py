from __future__ import annotations

from pathlib import Path

import pytest

from gcdbench.data.datasets.digits import Digits
from tests.engine.runs import ROWS


@pytest.fixture(autouse=True)
def few_digits(monkeypatch):
    """Runs on `digits` see the first rows only."""
    pixels, labels = Digits(Path("."))._data
    monkeypatch.setattr(Digits, "_data", (pixels[:ROWS], labels[:ROWS]))
