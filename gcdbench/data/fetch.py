"""Downloads: resumable, checked, shown, and unpacked without letting an archive write anywhere else."""

from __future__ import annotations

import hashlib
import http.client
import lzma
import os
import ssl
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gcdbench.contracts import Archive
from gcdbench.errors import DataError

CHUNK = 1 << 20
Report = Callable[[int, int | None], None]
"""Called with bytes done and bytes in all (None if the server does not say)."""


def matches(path: Path, archive: Archive) -> bool:
    """Whether a file has every checksum that is known of the archive."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(CHUNK):
            md5.update(block)
            sha256.update(block)
    return md5.hexdigest() == archive.md5 and archive.sha256 in ("", sha256.hexdigest())


def download(archive: Archive, folder: Path, report: Report) -> Path:
    """Fetch into ``folder``, resuming from a partial file; the name appears only after the checksum agrees."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise DataError(f"The folder {folder} cannot be made: {fault}.") from fault
    target = folder / archive.filename
    if target.is_file() and matches(target, archive):
        return target
    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    _require_https(archive.url)
    request = urllib.request.Request(archive.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with _opener().open(request, timeout=60) as answer:
            if have and answer.status != 206:  # the server starts over
                have = 0
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length and length.isdecimal() else None
            with part.open("ab" if have else "wb") as stream:
                while block := answer.read(CHUNK):
                    stream.write(block)
                    have += len(block)
                    report(have, total)
                if total is not None and have < total:
                    raise OSError(f"the connection ended after {have:,} of {total:,} bytes")
    except urllib.error.HTTPError as fault:
        if fault.code != 416:  # 416: the partial file is already whole
            raise DataError(f"{archive.url} answered {fault.code} {fault.reason}.") from fault
    except (urllib.error.URLError, http.client.HTTPException, OSError) as fault:
        reason = getattr(fault, "reason", fault)
        raise DataError(
            f"{archive.url} cannot be downloaded: {reason}. What has arrived is kept; run the command again."
        ) from fault
    if not matches(part, archive):
        part.unlink()
        raise DataError(f"The download of {archive.url} has the wrong checksum and was deleted; run it again.")
    part.replace(target)
    return target


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive; one with members that would land outside ``folder``, or link there, is refused whole."""
    try:
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as name:
            with tarfile.open(archive) as tar:
                tar.extractall(name, filter=_inside)
            for entry in sorted(Path(name).iterdir()):
                _move(entry, folder / entry.name)
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as fault:
        raise DataError(f"The archive {archive} cannot be unpacked: {fault}.") from fault


def _inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Python's own filter, which would make an absolute name a relative one; no one writes such archives by mistake."""
    if member.name.startswith(("/", "\\")):
        raise tarfile.AbsolutePathError(member)
    return tarfile.data_filter(member, folder)


def _move(entry: Path, target: Path) -> None:
    """Put what was unpacked in its place, also into folders that are there (or that the user has put elsewhere)."""
    if entry.is_dir() and not entry.is_symlink() and target.is_dir():
        for inner in sorted(entry.iterdir()):
            _move(inner, target / inner.name)
    else:
        os.replace(entry, target)


def _require_https(url: str) -> None:
    if urllib.parse.urlsplit(url).scheme != "https":
        raise DataError(f"{url} is not fetched: downloads are made over https only.")


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but to https only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Called with the new address."""
        _require_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(context: ssl.SSLContext | None = None) -> urllib.request.OpenerDirector:
    """What addresses are opened with; tests bring the certificate of their own server."""
    return urllib.request.build_opener(_SameScheme, urllib.request.HTTPSHandler(context=context))
