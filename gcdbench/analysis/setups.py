"""Runs of one set-up: the same method, recipe and settings, different seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gcdbench.backbone.catalogue import short_name
from gcdbench.config.resolve import NOT_IN_IDENTITY, decisive, flat_config
from gcdbench.records.record import Record


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
    """By seed; one per seed, unless the same seed was run under another protocol."""

    @property
    def name(self) -> str:
        """`rlcd (released)`, or `rlcd (paper; alpha=0.3)` with the settings the user chose."""
        chosen = ", ".join(f"{key.removeprefix('method.')}={spell(self.settings.get(key))}" for key in self.chosen)
        return f"{self.method} ({self.recipe}{'; ' if chosen else ''}{chosen})"

    def values(self, metric: str) -> dict[int, float]:
        """The metric by seed, where it was recorded."""
        return {r.seed: float(r.metrics[metric]) for r in self.records if metric in r.metrics}


def irrelevant(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys in which runs of one set-up may differ: they change memory, or what is logged, but no result."""
    logged = ("eval.every",) if config["eval"].get("selection") == "last" else ()
    return (*NOT_IN_IDENTITY, *logged, "backbone.name")


SAME_RESULTS = {"0.3": "0.2"}
"""Versions that gave no run another result than the one before."""


def results_version(version: str) -> str:
    """The first two numbers of a version, the second of which is raised whenever results may change: such runs are
    never averaged."""
    minor = ".".join(version.split(".")[:2])
    return SAME_RESULTS.get(minor, minor)


def settings_of(record: Record) -> dict[str, Any]:
    """What decides a run's result, apart from its seed and the backbone's name."""
    ignored = irrelevant(record.config)
    flat = {key: value for key, value in decisive(flat_config(record.config)).items() if key not in ignored}
    # Random weights follow the seed, so their hash differs within a set-up.
    random = record.backbone["weights"] == "random"
    return {
        **flat,
        "weights": "random" if random else record.backbone["weights_hash"],
        "plugin": f"{record.plugin['package']} {record.plugin['version']}",
        "gcdbench": results_version(record.versions.get("gcdbench", "")),
    }


def group(records: Iterable[Record]) -> list[Setup]:
    """Sort records into set-ups, in the order in which these first appear.

    Runs with the same settings and seed but different data are kept in one set-up, so that the difference of their
    protocols is noticed.
    """
    found: dict[str, list[Record]] = {}
    for record in records:
        key = json.dumps(
            [record.method, record.recipe, record.dataset, backbone_of(record), settings_of(record)],
            sort_keys=True,
            default=str,
        )
        found.setdefault(key, []).append(record)
    return [_setup(members) for members in found.values()]


def _setup(members: Sequence[Record]) -> Setup:
    first = members[0]
    # The same run may lie in two places (copied, or evaluated more often): it counts once.
    newest = {(r.seed, r.fingerprint): r for r in sorted(members, key=lambda r: r.finished)}
    return Setup(
        method=first.method,
        recipe=first.recipe,
        dataset=first.dataset,
        backbone=backbone_of(first),
        settings=settings_of(first),
        chosen=tuple(key for key in first.chosen if key not in irrelevant(first.config)),
        records=tuple(sorted(newest.values(), key=lambda r: r.seed)),
    )


def backbone_of(record: Record) -> str:
    """The backbone's short name."""
    return short_name(str(record.backbone["name"]))


def distinct_names(setups: Sequence[Setup]) -> list[str]:
    """Names that distinguish set-ups, by the versions or the weights where nothing else does."""
    names = [s.name for s in setups]
    for extra in ("plugin", "gcdbench", "weights"):
        values = {name: {s.settings[extra] for s, n in zip(setups, names, strict=True) if n == name} for name in names}
        names = [
            f"{name} [{s.settings[extra]}]" if names.count(name) > 1 and len(values[name]) > 1 else name
            for s, name in zip(setups, names, strict=True)
        ]
    return names


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
