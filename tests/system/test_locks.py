"""Locks: one holder at a time, the second is told who it waits for, and a dead holder holds nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

from gcdbench.system.locks import holder, is_locked, locked

HOLD = """
import sys, time
from pathlib import Path
from gcdbench.system.locks import locked
with locked(Path(sys.argv[1]), lambda who: None):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(path):
    """A process that holds the lock until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def never(who):
    raise AssertionError(f"had to wait for {who}")


def test_a_lock_is_signed_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "lock"
    with locked(path, never, remove=True):
        assert json.loads(path.read_text())["process"] == os.getpid()
        assert holder(path).startswith(f"process {os.getpid()} on ")
        assert is_locked(path)
    assert not path.exists()


def test_the_second_is_told_and_waits(tmp_path):
    path, order, told = tmp_path / "lock", [], []

    def second():
        with locked(path, told.append, remove=True):
            order.append("second")

    with locked(path, never, remove=True):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert told[0].startswith(f"process {os.getpid()} on ")
    assert not path.exists()


def test_many_take_turns_though_the_file_is_removed_each_time(tmp_path):
    path, inside, most = tmp_path / "lock", [], []

    def work():
        for _ in range(20):
            with locked(path, lambda who: None, remove=True):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 100


def test_a_killed_holder_holds_nothing(tmp_path):
    path = tmp_path / "lock"
    process = hold(path)
    assert is_locked(path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert path.exists()  # the file of a dead process
    with locked(path, never):
        assert holder(path).startswith(f"process {os.getpid()} on ")


def test_a_lock_file_of_a_process_that_is_long_gone_means_nothing(tmp_path):
    path = tmp_path / "lock"
    for content in ('{"process": 999999, "host": "elsewhere"}', "junk", ""):
        path.write_text(content)
        os.utime(path, (0, 0))
        with locked(path, never):
            pass


def test_a_file_system_without_locks_is_no_fault(tmp_path, monkeypatch):
    import errno
    import fcntl

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with locked(tmp_path / "lock", never):
        pass


def test_the_end_of_a_lock_does_not_remove_someone_elses(tmp_path):
    """Its file was removed, another process made a new one: that one stays."""
    path = tmp_path / "lock"
    with locked(path, never, remove=True):
        path.unlink()
        with locked(path, never, remove=False):
            inner = path.stat().st_ino
            assert is_locked(path)
    with locked(path, never, remove=True):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"
    assert inner
