"""Runs of one set-up: the same method, recipe and settings, different seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gcdbench.config import NOT_IN_IDENTITY, flat_config
from gcdbench.results.record import Record

IRRELEVANT = (*NOT_IN_IDENTITY, "eval.every")
"""Keys in which runs of one set-up may differ: they change memory, or what is logged, but no result."""


@dataclass(frozen=True)
class Setup:
    """Finished runs that differ in nothing but the seed."""

    method: str
    recipe: str
    dataset: str
    backbone: str
    settings: Mapping[str, Any]
    """Every config value that decides the result, by `section.key`, with the plugin's version and the weights."""
    chosen: tuple[str, ...]
    """Keys that are not as the recipe prescribes."""
    records: tuple[Record, ...]
    """One per seed, by seed."""

    @property
    def name(self) -> str:
        """`rlcd (released)`, or `rlcd (paper; alpha=0.3)` with the settings somebody chose."""
        chosen = ", ".join(f"{key.removeprefix('method.')}={spell(self.settings.get(key))}" for key in self.chosen)
        return f"{self.method} ({self.recipe}{'; ' if chosen else ''}{chosen})"

    @cached_property
    def fingerprints(self) -> frozenset[str]:
        """Protocols of the runs; more than one means that something outside the config changed."""
        return frozenset(record.fingerprint for record in self.records)

    def values(self, metric: str) -> dict[int, float]:
        """The metric by seed, where it was recorded."""
        return {r.seed: float(r.metrics[metric]) for r in self.records if metric in r.metrics}


def settings_of(record: Record) -> dict[str, Any]:
    """What decides a run's result, apart from its seed."""
    flat = {key: value for key, value in flat_config(record.config).items() if key not in IRRELEVANT}
    return {
        **flat,
        "weights": record.backbone.get("weights_hash"),
        "plugin": f"{record.plugin.get('package')} {record.plugin.get('version')}",
    }


def group(records: Iterable[Record]) -> list[Setup]:
    """Sort records into set-ups, in the order in which these first appear.

    Runs with the same settings and seed but different data are kept in one set-up, so that the difference of their
    protocols is noticed.
    """
    found: dict[str, list[Record]] = {}
    for record in records:
        key = json.dumps(
            [record.method, record.recipe, record.dataset, record.backbone.get("name"), settings_of(record)],
            sort_keys=True,
            default=str,
        )
        found.setdefault(key, []).append(record)
    return [_setup(members) for members in found.values()]


def _setup(members: Sequence[Record]) -> Setup:
    first = members[0]
    return Setup(
        method=first.method,
        recipe=first.recipe,
        dataset=first.dataset,
        backbone=str(first.backbone.get("name")),
        settings=settings_of(first),
        chosen=tuple(key for key in first.chosen if key not in IRRELEVANT),
        records=tuple(sorted(members, key=lambda r: r.seed)),
    )


def spell(value: Any) -> str:
    """A config value as a person would write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(spell(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {spell(inner)}" for key, inner in value.items())
    return "none" if value is None else str(value)
