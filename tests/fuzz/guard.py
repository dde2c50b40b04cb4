"""Watches what a parser does to the world while it reads: no file outside its folder, no process, no network."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

_NEVER = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "socket.", "shutil.",
          "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate",
          "ctypes.dlopen", "webbrowser.open", "urllib.Request")  # fmt: skip


class Escaped(BaseException):
    """A parser did what it must not do. Not an Exception: no handler of the code under test may swallow it."""


class Guard:
    """Armed, it raises when something outside ``root`` is touched. Python's own files may be read: imports are lazy."""

    def __init__(self, root: Path) -> None:
        self.armed = False
        places = {
            str(root),
            sys.prefix,
            sys.base_prefix,
            *sysconfig.get_paths().values(),
            str(Path(__file__).parents[2]),
        }
        self.places = tuple(os.path.realpath(place) + os.sep for place in places)
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event in ("open", "os.listdir", "os.scandir"):
            path = arguments[0]
            if isinstance(path, str | bytes | os.PathLike):
                self._check(event, os.fsdecode(path))
        elif event.startswith(_NEVER):
            self._escaped(f"{event} {arguments!r}")

    def _check(self, event: str, path: str) -> None:
        self.armed = False
        try:
            real = os.path.realpath(path)
        except ValueError:  # a zero byte: no file has such a name
            return
        finally:
            self.armed = True
        if not (real + os.sep).startswith(self.places) and real not in ("/dev/null", "/dev/urandom"):
            self._escaped(f"{event} {path!r}")

    def _escaped(self, what: str) -> None:
        self.armed = False
        raise Escaped(what)
