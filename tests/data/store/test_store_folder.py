"""A store appears whole or not at all, once, and only where there is room."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gcdbench.data.store import store_folder as folder
from gcdbench.data.store.store_folder import CannotStore, StoreFolder, cache_root, leftovers, spoken_size
from gcdbench.errors import UsageError


def make(tmp_path, **facts) -> StoreFolder:
    return StoreFolder(tmp_path, "images", {"a": 1, **facts})


def write_something(path: Path) -> dict:
    (path / "data.bin").write_bytes(b"12345")
    return {"rows": 5}


def test_a_store_says_what_it_is_and_is_not_made_twice(tmp_path):
    store, told = make(tmp_path), []
    assert store.description() is None
    store.build(5, "five bytes", write_something, told.append)
    store.build(5, "five bytes", lambda _: pytest.fail("made twice"), told.append)
    assert told == [f"Writing five bytes, about 0.005 kB, to {store.path} (once)."]
    assert store.description() == {"kind": "images", "what": "five bytes", "facts": {"a": 1}, "bytes": 5, "rows": 5}
    assert make(tmp_path, a=2).path != store.path


@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt])
def test_a_torn_build_leaves_nothing(fault, tmp_path):
    def tear(path: Path) -> dict:
        (path / "data.bin").write_bytes(b"12")
        raise fault

    store = make(tmp_path)
    with pytest.raises(fault):
        store.build(5, "five bytes", tear, print)
    assert store.description() is None
    assert [p for p in (tmp_path / "images").iterdir() if p.suffix != ".lock"] == []
    store.build(5, "five bytes", write_something, print)


def test_leftovers_of_a_killed_process_and_a_damaged_description_are_cleared(tmp_path):
    store = make(tmp_path)
    left = tmp_path / "images" / f".{store.key}.xyz.tmp"
    left.mkdir(parents=True)
    store.path.mkdir()
    (store.path / "store.json").write_text("{")
    store.build(5, "five bytes", write_something, print)
    assert not left.exists()
    assert store.description()["rows"] == 5


def test_a_short_disk_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(folder.shutil, "disk_usage", lambda _: usage._replace(free=2_000_000_000))
    store = make(tmp_path)
    with pytest.raises(CannotStore, match=r"The tokens would take 3 GB, but .* has only 2 GB free.*--cache"):
        store.build(3_000_000_000, "the tokens", lambda _: pytest.fail("written"), print)
    store.build(1_900_000_000, "the tokens", write_something, print)


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "images").write_text("a file")
    with pytest.raises(CannotStore, match=r"cannot be written to .*--cache"):
        make(tmp_path).build(5, "five bytes", write_something, print)


def test_two_processes_make_one_store(tmp_path):
    """Both want it at once: one writes, the other waits and takes what is there."""
    script = """
import sys, time
from pathlib import Path
from gcdbench.data.store.store_folder import StoreFolder
def fill(path):
    time.sleep(1.0)
    (path / "data.bin").write_bytes(b"12345")
    with open(sys.argv[1] + "/count", "a") as stream:
        stream.write("x")
    return {"rows": 5}
store = StoreFolder(Path(sys.argv[1]), "images", {"a": 1})
store.build(5, "five bytes", fill, print)
assert store.description()["rows"] == 5
"""
    both = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = "".join(p.communicate(timeout=60)[0] for p in both)
    assert [p.returncode for p in both] == [0, 0]
    assert (tmp_path / "count").read_text() == "x"
    assert said.count("Writing five bytes") == 1


def test_a_killed_builder_does_not_block_the_next(tmp_path):
    script = """
import sys, time
from pathlib import Path
from gcdbench.data.store.store_folder import StoreFolder
def fill(path):
    print("in", flush=True)
    time.sleep(60)
StoreFolder(Path(sys.argv[1]), "images", {"a": 1}).build(5, "five bytes", fill, lambda text: None)
"""
    victim = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert victim.stdout.readline() == "in\n"
    victim.kill()
    victim.wait()
    started = time.monotonic()
    make(tmp_path).build(5, "five bytes", write_something, print)
    assert time.monotonic() - started < 30
    assert json.loads((make(tmp_path).path / "store.json").read_text())["rows"] == 5


def test_where_stores_live(tmp_path, monkeypatch):
    monkeypatch.setenv("GCDBENCH_CACHE", str(tmp_path / "named"))
    assert cache_root() == tmp_path / "named"
    assert cache_root(tmp_path) == tmp_path
    monkeypatch.delenv("GCDBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "gcdbench"


def test_sizes_are_spoken():
    assert [spoken_size(n) for n in (3.21e9, 140_000_000, 1500)] == ["3.21 GB", "140 MB", "1.5 kB"]


@pytest.mark.parametrize("content", ["{}", "[]", '{"kind": "tokens", "bytes": 3}', '{"kind": "images", "bytes": "x"}'])
def test_a_description_that_is_none_is_no_store(content, tmp_path):
    store = make(tmp_path)
    store.path.mkdir(parents=True)
    (store.path / "store.json").write_text(content)
    assert store.description() is None
    store.build(5, "five bytes", write_something, print)
    assert store.description()["rows"] == 5


def test_what_killed_processes_left_is_found_but_not_what_is_being_written(tmp_path):
    store = make(tmp_path)
    left = tmp_path / "images" / ".0123456789abcdef.xyz.tmp"

    def fill(path: Path) -> dict:
        assert leftovers(tmp_path) == [left]
        return write_something(path)

    left.mkdir(parents=True)
    store.build(5, "five bytes", fill, print)


def test_no_home_is_a_sentence(monkeypatch):
    for name in ("GCDBENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(UsageError, match="--cache"):
        cache_root()
