"""Decoding with all cores: the same images in the same order, faults as sentences."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gcdbench.data.datasets.digits import Digits
from gcdbench.data.formats import decoding
from gcdbench.data.formats.decoding import decoded
from gcdbench.data.images import resized
from gcdbench.errors import DataError, PluginError
from tests.support.runs import fewer_digits


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    fewer_digits(monkeypatch)


@pytest.mark.parametrize("alone", [0, 1000])
def test_images_come_in_order_from_processes_and_from_threads(alone, monkeypatch):
    monkeypatch.setattr(decoding, "ALONE", alone)
    digits = Digits(Path("."))
    found = list(decoded(digits, "train", 18))
    assert len(found) == 400
    assert all((found[row] == resized(digits, "train", row, 18)).all() for row in range(0, 400, 7))


@pytest.mark.parametrize("alone", [0, 1000])
def test_a_dataset_that_fails_is_told_as_such(alone, monkeypatch):
    monkeypatch.setattr(decoding, "ALONE", alone)
    monkeypatch.setattr(Digits, "image", lambda *_: (_ for _ in ()).throw(ValueError("oops")))
    with pytest.raises(PluginError, match=r"^The dataset 'digits' failed in image: ValueError: oops \("):
        list(decoded(Digits(Path(".")), "train", 18))


def test_a_process_that_dies_is_a_sentence(monkeypatch):
    monkeypatch.setattr(decoding, "ALONE", 0)
    monkeypatch.setattr(Digits, "image", lambda *_: os._exit(3))
    with pytest.raises(DataError, match="A process that decodes images of Digits .* has died"):
        list(decoded(Digits(Path(".")), "train", 18))


@pytest.mark.parametrize("row", [0, 200, 399])
def test_a_process_that_dies_once_is_replaced(row, monkeypatch, tmp_path):
    """Killed for its memory, say: the images are the same, and nobody has to begin again."""
    monkeypatch.setattr(decoding, "ALONE", 0)
    original, mark = decoding._Work.__getitem__, tmp_path / "died"

    def die_once(self, number):
        if self.first + number == row and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
        return original(self, number)

    monkeypatch.setattr(decoding._Work, "__getitem__", die_once)
    digits = Digits(Path("."))
    found = list(decoded(digits, "train", 18))
    assert mark.exists()
    assert len(found) == 400
    assert all((found[n] == resized(digits, "train", n, 18)).all() for n in range(400))


def test_a_dataset_that_says_nothing_of_its_files_is_recognised_by_its_images(monkeypatch, tmp_path):
    from gcdbench.data.store.packed_images import image_store

    monkeypatch.setattr(Digits, "files_hash", lambda *_: "")
    before = image_store(tmp_path, Digits(tmp_path), "train", 18).key
    assert image_store(tmp_path, Digits(tmp_path), "train", 18).key == before
    original = Digits.image
    monkeypatch.setattr(Digits, "image", lambda *a: original(*a).transpose(0))
    assert image_store(tmp_path, Digits(tmp_path), "train", 18).key != before
    assert np.asarray(original(Digits(tmp_path), "train", 0)).shape == (8, 8, 3)
