"""Experiment files: a table or study of a paper as rows that can be run.

`[experiment]` says what it is; each `[[row]]` is a method with settings. A row's `on.DATASET` holds settings for one
dataset only, and the name `*` the ones for every dataset without a table of its own. `experiment.methods` is short for
rows without settings (`METHOD` or `METHOD:RECIPE`), and every `[[override]]` makes a further set of all rows with its
settings.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gcdbench
from gcdbench.analysis.published import plugin_folders
from gcdbench.config.protocol import Protocol
from gcdbench.config.resolve import read_toml
from gcdbench.errors import UsageError, nearest, unknown

KINDS = ("runs", "parameters")
PROTOCOL_FIELDS = tuple(f.name for f in dataclasses.fields(Protocol))
_EXPERIMENT_KEYS = (
    *("title", "kind", "published", "datasets", "backbones", "seeds"),
    *("methods", "metrics", "varies", "sweep", "settings"),
)
_OVERRIDE_KEYS = ("key", "label", "settings")
_ROW_KEYS = ("key", "label", "method", "recipe", "published", "settings", "on", "read")


@dataclass(frozen=True)
class Row:
    """One line of the study."""

    key: str
    label: str
    method: str
    recipe: str | None
    published: str
    """Key of the same line in the published table; the row's own key unless said otherwise."""
    settings: Mapping[str, Any]
    on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further settings by dataset; `*` for all others."""
    read: Mapping[str, str] = field(default_factory=dict)
    """Metric of the record that stands for a metric of the study."""

    def settings_on(self, dataset: str) -> dict[str, Any]:
        """What this row prescribes on a dataset; a UsageError if it has settings for other datasets only."""
        if self.on and dataset not in self.on and "*" not in self.on:
            raise UsageError(
                f"The row '{self.label}' has no settings for '{dataset}' (only for {', '.join(self.on)}): "
                f"write a file of your own with `on.{dataset}` in its rows."
            )
        return {**self.settings, **self.on.get(dataset, self.on.get("*", {}))}


@dataclass(frozen=True)
class Experiment:
    """A study: what varies, on which datasets, and what is read off."""

    name: str
    title: str
    kind: str
    """`runs`, or `parameters` for a study that only counts."""
    published: str | None
    """Id of the published table whose cells stand beside ours."""
    datasets: tuple[str, ...]
    """Where it was published; used unless datasets are asked for."""
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    varies: tuple[str, ...]
    """Protocol fields in which rows differ on purpose."""
    sweep: str | None
    """Config key whose values the rows run through, for a curve."""
    rows: tuple[Row, ...]
    path: Path
    backbones: tuple[str, ...] = ()
    """Backbones to make it on, one after another; empty takes the one of each dataset."""
    common: Mapping[str, Any] = field(default_factory=dict)
    """Settings that all rows share."""


def experiment_folders() -> list[Path]:
    """Where experiment files are looked for: here, in the source tree, in the installation, in method plugins."""
    source = Path(gcdbench.__file__).parents[1]
    places = [Path("configs"), Path(sys.prefix) / "share" / "gcdbench" / "configs"]
    if (source / "pyproject.toml").is_file():
        places.insert(1, source / "configs")
    return [*(place for place in places if place.is_dir()), *plugin_folders("experiments")]


def experiment_files() -> dict[str, Path]:
    """Experiments by name; a file nearer to the user wins."""
    found: dict[str, Path] = {}
    for folder in experiment_folders():
        for path in sorted(folder.glob("*.toml")):
            if path.stem not in found and _is_experiment(path):
                found[path.stem] = path
    return found


def _is_experiment(path: Path) -> bool:
    """Whether a file claims to be one; a file that cannot be read claims nothing."""
    try:
        return "experiment" in read_toml(path)
    except UsageError:
        return False


def load_experiment(name: str) -> Experiment:
    """An experiment by name or by the path of its file."""
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise UsageError(f"There is no experiment file {path}.")
    else:
        here = (folder / f"{name}.toml" for folder in experiment_folders())
        found = next((file for file in here if file.is_file()), None)
        if found is None:
            raise unknown("experiment", name, experiment_files())
        path = found
    return parse_experiment(path)


def parse_experiment(path: Path) -> Experiment:
    """Read a file strictly: every key is known and of the right kind."""
    tree = read_toml(path)
    head = tree.get("experiment")
    if not isinstance(head, Mapping):
        raise UsageError(f"{path} is no experiment file: it has no [experiment] section.")
    _check_keys(path, "[experiment]", head, _EXPERIMENT_KEYS)
    _check_keys(path, "the file", tree, ("experiment", "row", "override"))
    kind = head.get("kind", "runs")
    if kind not in KINDS:
        raise UsageError(f"{path}: experiment.kind is '{kind}'; it can be {' or '.join(KINDS)}.")
    entries = tree.get("row", [])
    if not isinstance(entries, list):
        raise UsageError(f"{path}: rows are written as [[row]].")
    entries = [*map(_short_row, _texts(path, "experiment.methods", head.get("methods", []))), *entries]
    if not entries:
        raise UsageError(f"{path}: an experiment needs at least one [[row]], or experiment.methods.")
    common = _mapping(path, "experiment.settings", head.get("settings", {}))
    rows = tuple(_row(path, number, entry, common) for number, entry in enumerate(entries, 1))
    rows = _overridden(path, rows, tree.get("override", []))
    keys = [row.key for row in rows]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise UsageError(f"{path}: two rows have the key '{twice}'.")
    datasets = _texts(path, "experiment.datasets", head.get("datasets"))
    if not datasets:
        raise UsageError(f"{path}: experiment.datasets is empty; name at least one dataset.")
    varies = _texts(path, "experiment.varies", head.get("varies", []))
    for name in varies:
        if name not in PROTOCOL_FIELDS:
            raise unknown(f"field of the protocol (experiment.varies in {path}) called", name, PROTOCOL_FIELDS)
    return Experiment(
        name=path.stem,
        title=_text(path, "experiment.title", head.get("title")),
        kind=kind,
        published=_optional(path, "experiment.published", head.get("published")),
        datasets=datasets,
        seeds=_seeds(path, head.get("seeds", [0, 1, 2])),
        metrics=_texts(path, "experiment.metrics", head.get("metrics", ["all", "base", "novel"])),
        varies=varies,
        sweep=_optional(path, "experiment.sweep", head.get("sweep")),
        rows=rows,
        path=path,
        backbones=_texts(path, "experiment.backbones", head.get("backbones", [])),
        common=common,
    )


def _short_row(name: str) -> dict[str, Any]:
    """`METHOD` or `METHOD:RECIPE` as a row."""
    method, _, recipe = name.partition(":")
    return {"key": name, "label": name, "method": method, **({"recipe": recipe} if recipe else {})}


def _overridden(path: Path, rows: tuple[Row, ...], overrides: Any) -> tuple[Row, ...]:
    """Every row as it is, then all rows with each override."""
    if not isinstance(overrides, list):
        raise UsageError(f"{path}: overrides are written as [[override]].")
    found = list(rows)
    for number, entry in enumerate(overrides, 1):
        where = f"override {number}"
        entry = _mapping(path, where, entry)
        _check_keys(path, where, entry, _OVERRIDE_KEYS)
        key, label = (_text(path, f"{where}.{name}", entry.get(name)) for name in ("key", "label"))
        more = _mapping(path, f"{where}.settings", entry.get("settings", {}))
        found += (
            dataclasses.replace(
                row,
                key=f"{row.key}/{key}",
                label=f"{row.label}, {label}",
                published=f"{row.key}/{key}",
                settings={**row.settings, **more},
            )
            for row in rows
        )
    return tuple(found)


def _row(path: Path, number: int, entry: Any, common: Mapping[str, Any]) -> Row:
    where = f"row {number}"
    entry = _mapping(path, where, entry)
    _check_keys(path, where, entry, _ROW_KEYS)
    on = _mapping(path, f"{where}.on", entry.get("on", {}))
    return Row(
        key=_text(path, f"{where}.key", entry.get("key")),
        label=_text(path, f"{where}.label", entry.get("label")),
        method=_text(path, f"{where}.method", entry.get("method")),
        recipe=_optional(path, f"{where}.recipe", entry.get("recipe")),
        published=_text(path, f"{where}.published", entry.get("published", entry.get("key"))),
        settings={**common, **_mapping(path, f"{where}.settings", entry.get("settings", {}))},
        on={dataset: _mapping(path, f"{where}.on.{dataset}", values) for dataset, values in on.items()},
        read={
            metric: _text(path, f"{where}.read.{metric}", name)
            for metric, name in _mapping(path, f"{where}.read", entry.get("read", {})).items()
        },
    )


def _check_keys(path: Path, where: str, tree: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in tree:
        if key not in known:
            close = nearest(key, known)
            hint = f" Did you mean '{close}'?" if close else f" Known: {', '.join(known)}."
            raise UsageError(f"{path}: {where} has no key '{key}'.{hint}")


def _mapping(path: Path, where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{path}: {where} must be a table, not {value!r}.")
    return value


def _text(path: Path, where: str, value: Any) -> str:
    if value is None:
        raise UsageError(f"{path}: {where} is missing.")
    if not isinstance(value, str) or not value:
        raise UsageError(f"{path}: {where} must be text, not {value!r}.")
    return value


def _optional(path: Path, where: str, value: Any) -> str | None:
    return None if value is None else _text(path, where, value)


def _texts(path: Path, where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise UsageError(f"{path}: {where} must be a list of names, not {value!r}.")
    return tuple(value)


def _seeds(path: Path, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(v) is int and v >= 0 for v in value):
        raise UsageError(f"{path}: experiment.seeds must be whole numbers like [0, 1, 2], not {value!r}.")
    return tuple(dict.fromkeys(value))
