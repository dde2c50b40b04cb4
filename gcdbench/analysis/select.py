"""Which finished runs stand for a method: one set-up each, never a mixture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gcdbench.analysis.setups import Setup, backbone_of, distinct_names, group, irrelevant, spell
from gcdbench.backbone.catalogue import short_name
from gcdbench.config.method_ref import MethodRef
from gcdbench.config.resolve import NEUTRAL, NOT_IN_IDENTITY, RunConfig, decisive, flat_config
from gcdbench.errors import UsageError
from gcdbench.records.record import Record


@dataclass(frozen=True)
class Wanted:
    """Conditions on the runs; None or empty means: whatever there is."""

    datasets: tuple[str, ...] = ()
    backbone: str | None = None
    seeds: tuple[int, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Config values a run must have."""

    def fits(self, record: Record) -> bool:
        """Whether a run is meant."""
        flat = flat_config(record.config)
        return (
            (not self.datasets or record.dataset in self.datasets)
            and (self.backbone is None or backbone_of(record) == short_name(self.backbone))
            and (self.seeds is None or record.seed in self.seeds)
            and all(_fits(flat, key, value) for key, value in self.settings.items())
        )


def _fits(flat: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a run has a setting. Settings that change no result fit any run, and neutral values each other."""
    if key in NOT_IN_IDENTITY:
        return True
    neutral = NEUTRAL.get(key, ())
    if value in neutral:
        return key not in flat or flat[key] in neutral
    return spell(flat.get(key)) == spell(value)


def records_of(configs: Sequence[RunConfig], records: Iterable[Record], version: str = "") -> list[Record]:
    """The records of one set-up: runs with these configs (which differ in the seed), weights and plugin version.

    Data is not compared: the protocol covers it. Where there are several such set-ups, one of the plugin's
    ``version`` is meant, of those the one with the most seeds, and of those the newest: never a mixture.
    """

    def decides(tree: Mapping[str, Any]) -> dict[str, str]:
        ignored = irrelevant(tree)
        return {key: spell(value) for key, value in decisive(flat_config(tree)).items() if key not in ignored}

    def named(config: RunConfig) -> tuple[Any, ...]:
        return config.method, config.dataset, config.recipe, config.seed, short_name(config.backbone.name)

    wanted = {named(config): config for config in configs}

    def is_wanted(record: Record) -> bool:
        config = wanted.get((record.method, record.dataset, record.recipe, record.seed, backbone_of(record)))
        if config is None:
            return False
        # Of a setting that the method did not have yet, the default is what the method did then.
        return decides(config.as_dict()) == {**_method_defaults(config), **decides(record.config)}

    fits = [r for r in records if is_wanted(r)]
    setups = group(fits)
    best = max(
        setups,
        key=lambda s: (s.records[0].plugin["version"] == version, len(s.records), max(r.finished for r in s.records)),
        default=None,
    )
    return [] if best is None else list(best.records)


def _method_defaults(config: RunConfig) -> dict[str, str]:
    """The method's settings that have a default, with that."""
    fields = dataclasses.fields(config.method_config)
    return {f"method.{f.name}": spell(f.default) for f in fields if f.default is not dataclasses.MISSING}


@dataclass(frozen=True)
class Selection:
    """The set-ups of one table, and what was left out."""

    dataset: str
    backbone: str
    setups: tuple[Setup, ...]
    missing: tuple[str, ...]
    """Contestants without a run."""
    left_out: tuple[str, ...]
    """Sentences on set-ups that are not shown."""
    problem: str | None = None
    """Why nothing can be selected here, where other places have something to show."""


def select(
    records: Iterable[Record],
    asked_methods: Sequence[MethodRef],
    wanted: Wanted,
    default_recipe: Callable[[str], str | None],
    all_setups: bool = False,
) -> list[Selection]:
    """One selection per dataset and backbone that any asked has runs on, sorted by name.

    ``default_recipe`` names a method's default recipe; it is asked only where runs of several recipes exist.
    """
    fitting = [r for r in records if wanted.fits(r)]
    setups = group(fitting)
    places = sorted({(s.dataset, s.backbone) for s in setups if any(_is(c, s) for c in asked_methods)})
    chooser = None if all_setups else lambda c, found: _prescribed(c, found, wanted, default_recipe)
    found = []
    for place in places:
        try:
            found.append(_select(place, setups, asked_methods, chooser))
        except UsageError as fault:
            if wanted.datasets or len(places) == 1:
                raise
            found.append(Selection(*place, (), (), (), str(fault)))
    return found


def _is(asked: MethodRef, setup: Setup) -> bool:
    return setup.method == asked.method and asked.recipe in (None, setup.recipe)


def _select(
    place: tuple[str, str],
    setups: Sequence[Setup],
    asked_methods: Sequence[MethodRef],
    chooser: Callable[[MethodRef, Sequence[Setup]], list[Setup]] | None,
) -> Selection:
    chosen: list[Setup] = []
    missing: list[str] = []
    others: list[Setup] = []
    for asked in asked_methods:
        candidates = [s for s in setups if (s.dataset, s.backbone) == place and _is(asked, s)]
        if not candidates:
            missing.append(str(asked))
            continue
        picked = candidates if chooser is None else chooser(asked, candidates)
        chosen += [s for s in picked if s not in chosen]
        others += [s for s in candidates if s not in picked]
    everybody = [*chosen, *(s for s in others if s not in chosen)]
    hidden = distinct_names(everybody)[len(chosen) :]
    left_out = [f"Other set-ups are left out: {'; '.join(hidden)} (--all-setups shows them)."] if hidden else []
    return Selection(place[0], place[1], tuple(chosen), tuple(missing), tuple(left_out))


def _prescribed(
    asked: MethodRef,
    candidates: Sequence[Setup],
    wanted: Wanted,
    default_recipe: Callable[[str], str | None],
) -> list[Setup]:
    """The set-up as the recipe prescribes it, apart from what was asked for; a single one is taken as it is."""
    recipes = {s.recipe for s in candidates}
    meant = asked.recipe or (default_recipe(asked.method) if len(recipes) > 1 else None)
    if meant in recipes:
        candidates = [s for s in candidates if s.recipe == meant]
    if len(candidates) == 1:
        return list(candidates)
    plain = [s for s in candidates if set(s.chosen) <= set(wanted.settings)]
    if plain:
        # Several are equal in every setting, so plugin version or weights differ: the latest is meant.
        return [max(plain, key=lambda s: max(r.finished for r in s.records))]
    listing = "; ".join(f"{s.name} (n = {len(s.records)})" for s in candidates)
    raise UsageError(
        f"'{asked}' has {len(candidates)} set-ups on {candidates[0].dataset} and none of them is as its recipe "
        f"prescribes: {listing}. Choose with METHOD:RECIPE or --set KEY=VALUE, or use --all-setups."
    )
