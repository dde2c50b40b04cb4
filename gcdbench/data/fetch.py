"""Downloads: resumable, checked, shown, and unpacked without letting an archive write anywhere else."""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gcdbench.errors import DataError

CHUNK = 1 << 20
Report = Callable[[int, int | None], None]
"""Called with bytes done and bytes in all (None if the server does not say)."""


@dataclass(frozen=True)
class Archive:
    """A tar archive at a stable public address."""

    url: str
    md5: str

    @property
    def filename(self) -> str:
        """Its local name."""
        return self.url.rsplit("/", 1)[-1]


def md5_of(path: Path) -> str:
    """MD5 as the publishers state it (it guards against damage, not against an attacker)."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def download(archive: Archive, folder: Path, report: Report) -> Path:
    """Fetch into ``folder``, going on from a partial file; the name appears only after the checksum agrees."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise DataError(f"The folder {folder} cannot be made: {fault}.") from fault
    target = folder / archive.filename
    if target.is_file() and md5_of(target) == archive.md5:
        return target
    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(archive.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            if have and answer.status != 206:  # the server starts over
                have = 0
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length else None
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
    if md5_of(part) != archive.md5:
        part.unlink()
        raise DataError(f"The download of {archive.url} has the wrong checksum and was deleted; run it again.")
    part.replace(target)
    return target


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive; members that would land outside ``folder`` are refused."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as fault:
        raise DataError(f"The archive {archive} cannot be unpacked: {fault}.") from fault
