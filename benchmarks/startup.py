"""How quickly the command line answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.figure import Figure, seconds
from benchmarks.scene import Scene
from benchmarks.steps import Found

ROUNDS = 7


def startup(scene: Scene) -> Iterator[Found]:
    """`gcdbench --help` against an empty Python program; the quicker half of the rounds counts."""
    import statistics

    def call(*arguments: str) -> float:
        return seconds(lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True))

    pairs = [(call("-m", "gcdbench", "--help"), call("-c", "pass")) for _ in range(ROUNDS)]
    ours, empty = (statistics.median(sorted(column)[: ROUNDS // 2 + 1]) for column in zip(*pairs, strict=True))
    detail = f"{1000 * ours:.0f} ms against {1000 * empty:.0f} ms"
    yield Figure("gcdbench --help against python -c pass", ours / empty, 8.0, at_least=False, detail=detail)
