"""A store whose making is killed resumes where it was noted, and ends with the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from gcdbench.data.datasets.digits import Digits
from gcdbench.data.store import resumable_writer as growing
from gcdbench.data.store.packed_images import PIXELS, PackedImages, image_store, pack
from gcdbench.data.store.resumable_writer import ENTRIES, NOTE, Growing
from gcdbench.data.store.store_folder import StoreFolder
from gcdbench.data.store.token_store import TOKENS, TokenKind, TokenStore, write_tokens
from tests.support.runs import fewer_digits

NUMBERS = np.dtype("<u4")


def fill(folder, until=None, interrupt=False):
    with Growing(folder, "data.bin", NUMBERS) as rows:
        first = rows.rows
        for number in range(first, 10):
            if number == until:
                if interrupt:
                    raise KeyboardInterrupt
                os.kill(os.getpid(), signal.SIGKILL)
            rows.add(bytes([number] * (number + 1)), number)
            rows.mark()
    return first, rows


def test_it_goes_on_after_what_was_noted(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, until=6, interrupt=True)
    assert json.loads((tmp_path / NOTE).read_text()) == {"rows": 6, "bytes": 21}
    first, rows = fill(tmp_path)
    assert first == 6
    assert rows.finish().tolist() == list(range(10))
    assert (tmp_path / "data.bin").read_bytes() == b"".join(bytes([n] * (n + 1)) for n in range(10))
    assert [p.name for p in tmp_path.iterdir()] == ["data.bin"]


def test_what_was_written_after_the_note_is_written_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, until=4, interrupt=True)
    with (tmp_path / "data.bin").open("ab") as stream:
        stream.write(b"half a ro")
    with (tmp_path / ENTRIES).open("ab") as stream:
        stream.write(b"xy")
    assert fill(tmp_path)[1].finish().tolist() == list(range(10))
    assert (tmp_path / "data.bin").stat().st_size == 55


@pytest.mark.parametrize("note", ["{", "[]", "{}", '{"rows": 99, "bytes": 1}', '{"rows": -1, "bytes": 0}', "null"])
def test_a_note_that_cannot_be_true_is_not_believed(note, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, until=4, interrupt=True)
    (tmp_path / NOTE).write_text(note)
    first, rows = fill(tmp_path)
    assert first == 0
    assert rows.finish().tolist() == list(range(10))


def test_an_error_leaves_nothing_and_an_interruption_what_was_done(tmp_path):
    tokens = torch.randn(10, 2, 4, generator=torch.Generator().manual_seed(0))
    asked = []

    def parts(stop, fault):
        def bring(first):
            asked.append(first)
            for number in range(first // 2, 5):
                if number == stop:
                    raise fault
                yield tokens[2 * number : 2 * number + 2]

        return bring

    def write(store, stop=None, fault=None):
        write_tokens(store, "tokens", TokenKind(10, (2, 4), "fp32"), parts(stop, fault), lambda text: None)

    whole, torn = (StoreFolder(tmp_path / name, "tokens", {"a": 1}) for name in ("whole", "torn"))
    write(whole)
    with pytest.raises(ZeroDivisionError):
        write(torn, 3, ZeroDivisionError())
    assert not torn._partial.exists()
    with pytest.raises(KeyboardInterrupt):
        write(torn, 3, KeyboardInterrupt())
    assert torn._partial.exists()
    assert torn.description() is None
    write(torn)
    assert asked == [0, 0, 0, 6]
    assert (torn.path / TOKENS).read_bytes() == (whole.path / TOKENS).read_bytes()
    assert torn.description() == whole.description()
    assert torch.equal(TokenStore(torn).read(np.arange(10)), tokens)


def test_packing_that_is_killed_goes_on(tmp_path, monkeypatch):
    fewer_digits(monkeypatch)
    digits = Digits(tmp_path)
    whole, torn = (image_store(tmp_path / name, digits, "train", 18) for name in ("whole", "torn"))
    pack(whole, digits, "train", 18, lambda text: None)
    monkeypatch.setattr(growing, "EVERY", 0.0)
    code = f"""
import os, signal, sys
from pathlib import Path
from gcdbench.data.datasets.digits import Digits
from gcdbench.data.store import resumable_writer as growing
from gcdbench.data.store.packed_images import image_store, pack
from tests.support.runs import fewer_digits
class Patch:
    setattr = staticmethod(setattr)
fewer_digits(Patch)
growing.EVERY = 0.0
digits = Digits(Path("."))
def tick(done, total):
    if done == 137:
        os.kill(os.getpid(), signal.SIGKILL)
pack(image_store(Path({str(tmp_path / "torn")!r}), digits, "train", 18), digits, "train", 18, print, tick)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == -9
    assert json.loads((torn._partial / NOTE).read_text())["rows"] == 137
    seen = []
    pack(torn, digits, "train", 18, lambda text: None, lambda done, total: seen.append(done))
    assert seen == list(range(138, 401))
    assert (torn.path / PIXELS).read_bytes() == (whole.path / PIXELS).read_bytes()
    assert torn.description() == whole.description()
    assert len(PackedImages(torn)) == 400
