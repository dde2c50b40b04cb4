"""Checkpoints that are torn, truncated or flipped are noticed, and the one before is used."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcdbench.errors import GcdbenchError
from gcdbench.system.observer import Observer
from gcdbench.training import checkpoint
from gcdbench.training.lane_state import LaneState
from tests.support.runs import assert_same, start

pytestmark = pytest.mark.usefixtures("few_digits")

CPU = torch.device("cpu")
STATE = dict.fromkeys(field.name for field in fields(LaneState)) | {"run": "me", "lane": {"w": torch.arange(6.0)}}


class Listen(Observer):
    def __init__(self):
        self.notes = []

    def warn(self, message):
        self.notes.append(message)


def two_generations(folder: Path) -> tuple[bytes, bytes]:
    checkpoint.save(folder, {**STATE, "epoch": 1})
    checkpoint.save(folder, {**STATE, "epoch": 2})
    return (folder / checkpoint.FILE).read_bytes(), (folder / checkpoint.PREVIOUS).read_bytes()


def test_what_is_saved_comes_back_and_plain_torch_reads_it(tmp_path):
    two_generations(tmp_path)
    assert checkpoint.load(tmp_path)["epoch"] == 2
    state, notes = checkpoint.restore(tmp_path, "me")
    assert state["epoch"] == 2
    assert torch.equal(state["lane"]["w"], torch.arange(6.0))
    assert notes == []
    assert torch.load(tmp_path / checkpoint.FILE, weights_only=True)["epoch"] == 2
    assert torch.load(tmp_path / checkpoint.PREVIOUS, weights_only=True)["epoch"] == 1


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_to_the_newest_is_noticed(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    whole, _ = two_generations(folder)
    kind = data.draw(st.sampled_from(["torn", "flipped", "zeros", "longer"]))
    if kind == "torn":
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    elif kind == "flipped":
        place, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
        damaged = whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :]
    elif kind == "zeros":
        place = data.draw(st.integers(0, len(whole) - 1))
        damaged = whole[:place] + bytes(len(whole) - place)
    else:
        damaged = whole + data.draw(st.binary(min_size=1, max_size=100))
    if damaged == whole:
        return
    (folder / checkpoint.FILE).write_bytes(damaged)
    with pytest.raises(GcdbenchError, match="is damaged"):
        checkpoint.load(folder)
    state, (note,) = checkpoint.restore(folder, "me")
    assert state["epoch"] == 1
    assert "is damaged" in note
    assert "resumes from the one before it" in note
    # The next one never pushes out the good one.
    checkpoint.save(folder, {**STATE, "epoch": 3})
    assert checkpoint.load(folder)["epoch"] == 3
    assert (folder / "checkpoint/last.damaged").read_bytes() == damaged


def test_both_damaged_starts_from_the_beginning_and_says_so(tmp_path):
    two_generations(tmp_path)
    for name in (checkpoint.FILE, checkpoint.PREVIOUS):
        (tmp_path / name).write_bytes(b"junk")
    state, notes = checkpoint.restore(tmp_path, "me")
    assert state is None
    assert len(notes) == 2
    assert "resumes from the beginning" in notes[1]


def test_killed_between_the_two_renames_the_older_one_is_used(tmp_path):
    two_generations(tmp_path)
    os.unlink(tmp_path / checkpoint.FILE)
    state, notes = checkpoint.restore(tmp_path, "me")
    assert state["epoch"] == 1
    assert notes == []


def test_leftovers_of_a_killed_writer_are_removed(tmp_path):
    two_generations(tmp_path)
    left = tmp_path / "checkpoint/.last.pt.abc.tmp"
    left.write_bytes(b"half")
    checkpoint.restore(tmp_path, "me")
    assert not left.exists()


def test_a_checkpoint_of_another_run_is_never_continued(tmp_path):
    two_generations(tmp_path)
    with pytest.raises(GcdbenchError, match="belongs to the run me, not to you"):
        checkpoint.restore(tmp_path, "you")


def test_a_checkpoint_cannot_run_code(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    checkpoint.write(tmp_path / checkpoint.FILE, {**STATE, "lane": Bomb()})
    with pytest.raises(GcdbenchError, match="cannot be read"):
        checkpoint.restore(tmp_path, "me")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("damage", [lambda whole: whole[:100], lambda whole: whole[:-40] + b"x" + whole[-39:], bytes])
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(damage, tmp_path, few_digits):
    whole = start(tmp_path, where="whole", epochs=3)[0]
    record = start(tmp_path, epochs=3)[0]
    folder = Path(record.dir)
    (folder / "record.json").unlink()
    file = folder / checkpoint.FILE
    content = damage(file.read_bytes()) if damage is not bytes else b""
    file.write_bytes(content)
    listen = Listen()
    again = start(tmp_path, epochs=3, observer=listen)[0]
    assert len([note for note in listen.notes if "is damaged" in note and "the one before it" in note]) == 1
    assert "is damaged" in (folder / "log.txt").read_text()
    assert_same(whole, again)
    assert again.metrics == whole.metrics
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("content", [{}, {"lane": {"method": {}}}])
def test_a_foreign_checkpoint_is_a_sentence(content, tmp_path, few_digits):
    record = start(tmp_path, epochs=1)[0]
    (Path(record.dir) / "record.json").unlink()
    if content:
        content = {**checkpoint.load(Path(record.dir)), **content}
    checkpoint.write(Path(record.dir) / checkpoint.FILE, content)
    with pytest.raises(GcdbenchError, match="--force"):
        start(tmp_path, epochs=1)
    assert start(tmp_path, epochs=1, force=True)[0].metrics == record.metrics
