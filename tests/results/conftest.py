from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _few(few_digits):
    """Every test here runs on few rows."""
