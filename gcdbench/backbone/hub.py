"""The hub that pretrained weights come from: asked once whether it is there, and silent otherwise."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

PATIENCE = 5.0
"""Seconds for a first answer; the hub's own client tries for most of a minute."""


@contextmanager
def hub() -> Iterator[None]:
    """Within, weights come from the hub or, where it cannot be reached, from its cache; no line of its own is shown."""
    from huggingface_hub import constants

    logs = logging.getLogger("huggingface_hub")
    level, offline = logs.level, constants.HF_HUB_OFFLINE
    logs.setLevel(logging.CRITICAL)
    try:
        if not offline and not reachable(constants.ENDPOINT):
            constants.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        logs.setLevel(level)


def reachable(address: str) -> bool:
    """Whether something answers at an address."""
    parts = urlsplit(address)
    with suppress(OSError):
        port = parts.port or (80 if parts.scheme == "http" else 443)
        with socket.create_connection((parts.hostname or "", port), timeout=PATIENCE):
            return True
    return _by_proxy(parts.scheme)


def _by_proxy(scheme: str) -> bool:
    """A proxy may reach what this machine does not."""
    from urllib.request import getproxies

    return scheme in getproxies()
