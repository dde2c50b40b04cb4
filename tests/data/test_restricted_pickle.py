from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from gcdbench.data.restricted_pickle import load_batch
from gcdbench.errors import DataError


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def test_a_pickle_cannot_run_anything(tmp_path):
    target = tmp_path / "ran"
    file = tmp_path / "batch"
    file.write_bytes(pickle.dumps({b"data": Bomb(target)}))
    with pytest.raises(DataError, match="not allowed"):
        load_batch(file)
    assert not target.exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_arrays_and_lists_come_through(protocol, tmp_path):
    file = tmp_path / "batch"
    content = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2]}
    file.write_bytes(pickle.dumps(content, protocol=protocol))
    read = load_batch(file)
    assert (read[b"data"] == content[b"data"]).all()
    assert read[b"labels"] == [1, 2]


@pytest.mark.parametrize("content", [b"", b"junk", b"\x80\x02N.", b"\x80\x02]q\x00."])
def test_damage_is_a_sentence(content, tmp_path):
    file = tmp_path / "batch"
    file.write_bytes(content)
    with pytest.raises(DataError, match="not a CIFAR batch"):
        load_batch(file)
