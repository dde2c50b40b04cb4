"""Downloads from a server on this machine, interrupted and damaged."""

from __future__ import annotations

import hashlib
import http.server
import io
import tarfile
from pathlib import Path
from typing import ClassVar

import pytest

from gcdbench import registry
from gcdbench.contracts import Archive
from gcdbench.data.fetch import download, unpack
from gcdbench.errors import DataError
from tests.support.serving import serving


class Handler(http.server.BaseHTTPRequestHandler):
    content: ClassVar[bytes] = b""
    asked: ClassVar[list[str | None]] = []
    stop_after: ClassVar[int | None] = None
    redirect: ClassVar[str | None] = None

    def do_GET(self):
        if self.redirect is not None and self.path != "/elsewhere":
            self.send_response(302)
            self.send_header("Location", self.redirect)
            self.end_headers()
            return
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
def server(certificate):
    Handler.content = tar_of({"folder/a.txt": b"hello" * 1000})
    Handler.asked = []
    Handler.stop_after = None
    Handler.redirect = None
    with serving(Handler, certificate) as address:
        yield f"{address}/set.tar"


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
        download(Archive("https://127.0.0.1:9/x.tar", "0" * 32), tmp_path, lambda *now: None)


def test_every_published_archive_is_fetched_over_https_and_has_a_checksum():
    found = [a for p in registry.plugins("dataset") for a in p.load().archives]
    assert len(found) == 4
    assert all(a.url.startswith("https://") and len(a.md5) == 32 for a in found)
    assert [len(a.sha256) for a in found].count(64) == 3  # nobody has published one of FGVC-Aircraft


def test_sha256_counts_as_well(server, tmp_path):
    right = hashlib.sha256(Handler.content).hexdigest()
    assert download(Archive(server, md5(), right), tmp_path, lambda *now: None).is_file()
    with pytest.raises(DataError, match="wrong checksum"):
        download(Archive(server, md5(), "0" * 64), tmp_path / "other", lambda *now: None)


def test_plain_http_is_refused(server, tmp_path):
    with serving(Handler) as plain, pytest.raises(DataError, match="over https only"):
        download(Archive(f"{plain}/set.tar", md5()), tmp_path, lambda *now: None)
    assert Handler.asked == []


def test_a_redirect_to_another_scheme_is_refused(server, tmp_path):
    with serving(Handler) as plain:
        for target in (f"{plain}/elsewhere", "ftp://127.0.0.1/x", "file:///etc/passwd"):
            Handler.redirect = target
            with pytest.raises(DataError, match="over https only|cannot be downloaded|answered 302"):
                download(Archive(server, md5()), tmp_path, lambda *now: None)
    assert Handler.asked == []
    assert not [p for p in tmp_path.iterdir() if p.stat().st_size]


def test_a_redirect_within_https_is_followed(server, tmp_path):
    Handler.redirect = server.replace("set.tar", "elsewhere")
    assert download(Archive(server, md5()), tmp_path, lambda *now: None).read_bytes() == Handler.content


def test_a_server_no_one_vouches_for_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.undo()  # the usual certificates
    with pytest.raises(DataError, match=r"(?i)certificate"):
        download(Archive(server, md5()), tmp_path, lambda *now: None)


def link(name: str, target: str, kind: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        good = tarfile.TarInfo("good.txt")
        good.size = 2
        tar.addfile(good, io.BytesIO(b"ok"))
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        tar.addfile(member)
        behind = tarfile.TarInfo(f"{name}/behind.txt")
        behind.size = 1
        tar.addfile(behind, io.BytesIO(b"x"))
    return stream.getvalue()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
@pytest.mark.parametrize("target", ["../outside", "/tmp", "a/../../outside"])
def test_archives_cannot_link_elsewhere_and_are_refused_whole(kind, target, tmp_path):
    (tmp_path / "outside").mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    archive = tmp_path / "evil.tar"
    archive.write_bytes(link("door", target, kind))
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(archive, inside)
    assert list((tmp_path / "outside").iterdir()) == []
    assert list(inside.iterdir()) == []  # not even the good member


def test_a_folder_that_the_user_keeps_elsewhere_is_used(tmp_path):
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "root"
    elsewhere.mkdir()
    root.mkdir()
    (root / "folder").symlink_to(elsewhere)
    archive = tmp_path / "set.tar"
    archive.write_bytes(tar_of({"folder/a.txt": b"x"}))
    unpack(archive, root)
    assert (elsewhere / "a.txt").read_bytes() == b"x"
    assert (root / "folder").is_symlink()


def test_unpacking_again_into_folders_that_are_there(tmp_path):
    archive = tmp_path / "set.tar"
    for content in (b"one", b"two"):
        archive.write_bytes(tar_of({"folder/a.txt": content, "folder/deep/b.txt": content}))
        unpack(archive, tmp_path)
        assert (tmp_path / "folder/deep/b.txt").read_bytes() == content


@pytest.mark.parametrize("name", ["../escape.txt", "/tmp/gcdbench-escape.txt"])
def test_archives_cannot_write_elsewhere(name, tmp_path):
    archive = tmp_path / "evil.tar"
    archive.write_bytes(tar_of({name: b"x"}))
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(archive, inside)
    assert list(inside.iterdir()) == []
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
