"""Notices at once that another rank has ended, whatever this one is waiting for.

Each rank holds a connection to the first one. The system closes it when a process dies, however it dies, and finds
out by itself (keep-alive) when a whole machine is gone. A rank that is only slow is never taken for a dead one.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gcdbench.system.parallel.spawn import STORE

GRACE = 15.0
"""Seconds this process has to end by itself after another one was lost."""
LOST = 7
"""Exit code then."""


class Watch:
    """The connections of one rank and the thread that listens to them."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._peers: dict[int, socket.socket] = {}
        self._done: set[int] = set()
        self._why: str | None = None
        self._lost = threading.Event()
        self._first_ended = threading.Event()
        self._parent = os.getppid() if STORE in os.environ else 0
        self._closing = False
        self._lock = threading.Lock()

    # ------------------------------------------------------------------------------------------ connecting

    def listen(self, host: str) -> str:
        """On the first rank: where the others find it, as text that only they are given."""
        self._secret = secrets.token_hex(16)
        if host in ("localhost", "127.0.0.1"):
            self._server = socket.create_server(("127.0.0.1", 0))
        elif socket.has_dualstack_ipv6():
            self._server = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            self._server = socket.create_server(("", 0))
        return json.dumps({"port": self._server.getsockname()[1], "secret": self._secret})

    def accept(self, seconds: float = 120.0) -> None:
        """On the first rank: wait until all others have come. Whoever does not know the secret is sent away."""
        ends = time.monotonic() + seconds
        while len(self._peers) < self.size - 1:
            self._server.settimeout(max(0.1, ends - time.monotonic()))
            peer, _ = self._server.accept()
            peer.settimeout(2.0)
            with suppress(OSError, ValueError, KeyError, TypeError):
                hello = json.loads(_line(peer, most=200))
                rank = int(hello["rank"])
                if secrets.compare_digest(str(hello["secret"]), self._secret) and 0 < rank < self.size:
                    self._peers[rank] = _kept_alive(peer)
                    continue
            peer.close()
        self._server.close()
        self._start()

    def connect(self, where: str, host: str) -> None:
        """On other ranks: go to the first one, by the name that this machine has for it."""
        place = json.loads(where)
        peer = socket.create_connection((host, place["port"]), timeout=60.0)
        peer.sendall(json.dumps({"rank": self.rank, "secret": place["secret"]}).encode() + b"\n")
        self._peers[0] = _kept_alive(peer)
        self._start()

    def _start(self) -> None:
        threading.Thread(target=self._listen, name="gcdbench-watch", daemon=True).start()

    # ------------------------------------------------------------------------------------------- listening

    def _listen(self) -> None:
        with selectors.DefaultSelector() as waiting:
            for rank, peer in self._peers.items():
                waiting.register(peer, selectors.EVENT_READ, rank)
            while waiting.get_map() and not self._closing:
                self._look_after_parent()
                for key, _ in waiting.select(timeout=1.0):
                    if not self._heard(key.data, key.fileobj):
                        waiting.unregister(key.fileobj)

    def _look_after_parent(self) -> None:
        """The one that has started this process here is gone: no one else would end one that waits for a message."""
        if self._parent and os.getppid() != self._parent:
            self._parent = 0
            self._missing("The process that had started the ranks has ended.")

    def _heard(self, rank: int, peer: Any) -> bool:
        """A word of another rank, or its end; whether there may be more."""
        try:
            word = json.loads(_line(peer) or "null")
        except (OSError, ValueError):
            word = None
        if rank == 0:
            self._first_ended.set()
        if self._closing:
            return False
        if word is None:
            if rank not in self._done:
                how = "without an error message (killed, or its machine is gone)"
                self._missing(f"Rank {rank} of {self.size} ended {how}.")
        elif word["code"]:
            # What the first rank passes on has been put into words there.
            said = word["sentence"] if word.get("passed") else f"Rank {rank} of {self.size} has stopped"
            own = "" if word.get("passed") else f": {word['sentence']}" if word["sentence"] else "."
            self._missing(said + own)
        else:
            self._done.add(rank)
        return word is not None

    def _missing(self, why: str) -> None:
        """Tell the others and give the main thread a while to end by itself."""
        with self._lock:
            if self._why is not None:
                return
            self._why = f"{why} The last checkpoint of the run is kept; the same command resumes from it."
        self._lost.set()
        if self.rank == 0:
            self._tell({"code": LOST, "sentence": why, "passed": True})
        threading.Thread(target=self._end, name="gcdbench-end", daemon=True).start()

    def _end(self) -> None:
        time.sleep(GRACE)
        if not self._closing:
            self._exit(LOST, self._why or "")

    def _exit(self, code: int, sentence: str) -> None:
        """End without asking the main thread, which waits for a message that will never come."""
        if self.rank == 0:
            with suppress(OSError):
                print(f"Error: {sentence}", file=sys.stderr, flush=True)
        os._exit(code)

    def await_first(self, seconds: float = 600.0) -> None:
        """Until the first rank has ended."""
        self._first_ended.wait(seconds)

    def why(self, seconds: float = 0.0) -> str | None:
        """Which rank is missing, if one is; it may take a moment until that is known."""
        self._lost.wait(seconds)
        return self._why

    # --------------------------------------------------------------------------------------------- saying so

    @contextmanager
    def deadline(self, seconds: float, sentence: str, code: int) -> Iterator[None]:
        """If what is inside takes longer, this process says so and ends."""

        def end() -> None:
            self._tell({"code": code, "sentence": sentence})
            time.sleep(1.0)
            self._exit(code, sentence)

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _tell(self, word: dict[str, Any]) -> None:
        for peer in self._peers.values():
            with suppress(OSError):
                peer.sendall(json.dumps(word).encode() + b"\n")

    def close(self, code: int, sentence: str) -> None:
        """This rank ends by itself, well (0) or badly."""
        self._closing = True
        self._tell({"code": code, "sentence": sentence})
        for peer in self._peers.values():
            with suppress(OSError):
                peer.shutdown(socket.SHUT_WR)


def _line(peer: socket.socket, most: int = 100_000) -> str:
    """One line of text; empty at the end."""
    found = b""
    while not found.endswith(b"\n"):
        byte = peer.recv(1)
        if not byte:
            break
        found += byte
        if len(found) > most:
            raise ValueError("a line without an end")
    return found.decode("utf-8", "replace")


def _kept_alive(peer: socket.socket) -> socket.socket:
    """The system asks a silent machine every few seconds whether it is still there."""
    peer.settimeout(30.0)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000)):
        option = getattr(socket, name, None)  # not on every system
        if option is not None:
            with suppress(OSError):
                peer.setsockopt(socket.IPPROTO_TCP, option, value)
    return peer
