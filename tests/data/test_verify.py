from __future__ import annotations

from pathlib import Path

from gcdbench.data.datasets.digits import Digits
from gcdbench.data.datasets.scars import StanfordCars
from gcdbench.data.verify import verify
from tests.support.trees import write_scars


def test_embedded_digits_are_complete():
    result = verify(Digits(Path(".")))
    assert result.ok
    assert result.parts["train"] == {
        "rows": 1797,
        "expected_rows": 1797,
        "classes": 10,
        "expected_classes": 10,
        "images_read": 1797,
    }


def test_counts_and_damage_are_found(tmp_path):
    folder = write_scars(tmp_path, test=False)
    (folder / "cars_train/00003.jpg").write_bytes(b"")
    (folder / "cars_train/00004.jpg").unlink()
    result = verify(StanfordCars(tmp_path))
    assert not result.ok
    text = "\n".join(result.problems)
    assert "392 rows instead of 8,144" in text
    assert "00003.jpg cannot be read" in text
    assert "00004.jpg does not exist" in text
    assert result.parts["train"]["images_read"] == 390
    assert "eval.rows=test" in result.notes[0]


def test_sample_limits_the_reading(tmp_path):
    write_scars(tmp_path)
    ticks: list[int] = []
    verify(StanfordCars(tmp_path), sample=10, tick=lambda part, done, total: ticks.append(total))
    assert set(ticks) == {10}
