"""The published class lists, shipped as JSON."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any

from gcdbench.contracts import ClassSplit


@lru_cache(maxsize=1)
def _all() -> dict[str, Any]:
    text = (resources.files("gcdbench.data") / "class_lists.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def published_split(dataset: str) -> ClassSplit:
    """Base and novel class ids of a dataset in their published order (novel: hard, then medium, then easy)."""
    entry = _all()[dataset]
    return ClassSplit(tuple(entry["base"]), tuple(entry["novel"]))


def imagenet100_wnids() -> tuple[str, ...]:
    """The 100 WordNet ids of ImageNet-100, sorted; their position is the class id."""
    return tuple(_all()["imagenet100"]["wnids"])
