"""The checks of datasets, evaluators and K estimators: sound ones pass, broken ones are caught by the right check."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gcdbench.registry import Plugin
from gcdbench.testing.kit import FAILED, Report, checks_of
from gcdbench.testing.subject import session_of
from tests.testing import broken_others

NAMES = {"dataset": "Dataset", "evaluator": "Evaluator", "k-estimator": "KEstimator"}
KINDS = [(kind, check) for kind in NAMES for check in checks_of(kind) if check != "import-quiet"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for name in "abcd":
        (root / name).mkdir()
        for number in range(12):
            pixels = random.integers(255, size=(9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def check_all(kind: str, cls: str, root: Path) -> Report:
    plugin = Plugin(kind, "subject", f"tests.testing.broken_others:{cls}", "a package", "1.0", "")
    return Report(kind, "subject", tuple(session_of(plugin, root).all()))


@pytest.mark.parametrize("kind", NAMES)
def test_sound_ones_pass(kind, photos):
    sound = {"k-estimator": "SoundEstimator"}.get(kind, f"Sound{NAMES[kind]}")
    report = check_all(kind, sound, photos)
    assert report.ok, report.summary()
    assert len(report.of("passed")) == len(checks_of(kind))


@pytest.mark.parametrize(("kind", "check"), KINDS)
def test_broken_ones_are_caught(kind, check, photos):
    cls = NAMES[kind] + "Fails" + "".join(part.capitalize() for part in check.split("-"))
    assert hasattr(broken_others, cls)
    report = check_all(kind, cls, photos)
    assert [o.check.name for o in report.of(FAILED)] == [check], report.summary()
