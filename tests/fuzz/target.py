"""What a fuzz target is: what it is given, and what it may answer.

A target may return, or raise a GcdbenchError, which is a sentence. Everything else is a finding.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from random import Random

from tests.fuzz.mutate import mutate


class Target:
    """Writes a damaged file below ``root`` and reads it with the code under test."""

    name: str
    share: int = 1
    """Cases relative to the other targets: quick ones get more."""

    def __init__(self, root: Path) -> None:
        self.root = root / self.name
        self.root.mkdir(parents=True, exist_ok=True)

    @cached_property
    def seeds(self) -> list[bytes]:
        """Whole files to begin with."""
        raise NotImplementedError

    def case(self, random: Random) -> bytes:
        """The content of one case."""
        return mutate(random.choice(self.seeds), random, tuple(self.seeds))

    def prepare(self, content: bytes, random: Random) -> None:
        """Write it."""
        raise NotImplementedError

    def read(self) -> None:
        """Parse it."""
        raise NotImplementedError
