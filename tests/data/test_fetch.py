"""Downloads from a server on this machine, interrupted and damaged."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import tarfile
import threading
from pathlib import Path
from typing import ClassVar

import pytest

from gcdbench.data.fetch import Archive, download, unpack
from gcdbench.errors import DataError


class Handler(http.server.BaseHTTPRequestHandler):
    content: ClassVar[bytes] = b""
    asked: ClassVar[list[str | None]] = []
    stop_after: ClassVar[int | None] = None

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if start >= len(self.content):
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start : self.stop_after])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    Handler.content = tar_of({"folder/a.txt": b"hello" * 1000})
    Handler.asked = []
    Handler.stop_after = None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}/set.tar"
        running.shutdown()


def tar_of(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def md5() -> str:
    return hashlib.md5(Handler.content).hexdigest()


def test_download_reports_checks_and_unpacks(server, tmp_path):
    seen: list[tuple[int, int | None]] = []
    path = download(Archive(server, md5()), tmp_path, lambda *now: seen.append(now))
    assert seen[-1] == (len(Handler.content), len(Handler.content))
    unpack(path, tmp_path)
    assert (tmp_path / "folder/a.txt").read_bytes() == b"hello" * 1000
    download(Archive(server, md5()), tmp_path, lambda *now: None)
    assert len(Handler.asked) == 1  # a complete file is not fetched again


def test_download_goes_on_where_it_stopped(server, tmp_path):
    (tmp_path / "set.tar.part").write_bytes(Handler.content[:700])
    path = download(Archive(server, md5()), tmp_path, lambda *now: None)
    assert Handler.asked == ["bytes=700-"]
    assert path.read_bytes() == Handler.content


def test_whole_partial_file_is_accepted(server, tmp_path):
    (tmp_path / "set.tar.part").write_bytes(Handler.content)
    assert download(Archive(server, md5()), tmp_path, lambda *now: None).is_file()


def test_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(DataError, match="wrong checksum"):
        download(Archive(server, "0" * 32), tmp_path, lambda *now: None)
    assert list(tmp_path.iterdir()) == []


def test_unreachable_server_is_a_sentence(tmp_path):
    with pytest.raises(DataError, match="cannot be downloaded"):
        download(Archive("http://127.0.0.1:9/x.tar", "0" * 32), tmp_path, lambda *now: None)


@pytest.mark.parametrize("name", ["../escape.txt", "/tmp/gcdbench-escape.txt"])
def test_archives_cannot_write_elsewhere(name, tmp_path):
    archive = tmp_path / "evil.tar"
    archive.write_bytes(tar_of({name: b"x"}))
    inside = tmp_path / "inside"
    inside.mkdir()
    with contextlib.suppress(DataError):  # refused, or its leading slash stripped: both are safe
        unpack(archive, inside)
    assert not (tmp_path / "escape.txt").exists()
    assert not Path("/tmp/gcdbench-escape.txt").exists()


def test_damaged_archive_is_a_sentence(tmp_path):
    archive = tmp_path / "bad.tar"
    archive.write_bytes(b"junk" * 300)
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(archive, tmp_path)


def test_a_broken_connection_keeps_what_has_arrived(server, tmp_path):
    Handler.stop_after = 2000
    with pytest.raises(DataError, match="What has arrived is kept"):
        download(Archive(server, md5()), tmp_path, lambda *now: None)
    assert (tmp_path / "set.tar.part").stat().st_size == 2000
    Handler.stop_after = None
    assert download(Archive(server, md5()), tmp_path, lambda *now: None).read_bytes() == Handler.content
    assert Handler.asked == [None, "bytes=2000-"]
