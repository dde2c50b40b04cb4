"""Servers on this machine, with a certificate that only the tests trust."""

from __future__ import annotations

import contextlib
import http.server
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Certificate and key for 127.0.0.1."""
    key, file = folder / "key.pem", folder / "cert.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {file} -days 2 -subj /CN=test"
    subprocess.run([*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return file, key


@contextlib.contextmanager
def serving(handler: Any, certificate: tuple[Path, Path] | None = None) -> Iterator[str]:
    """The address of a running server: https with a certificate, else http."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            running.socket = context.wrap_socket(running.socket, server_side=True)
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
