"""Published numbers as data: tables of papers that plugins ship as `paper/*.toml` beside their module.

A file holds `id`, `title`, `source`, `metrics`, `datasets` and one `[[row]]` per line of the table, in which each
dataset's name maps to a list of numbers in the order of `metrics`. `main = true` marks tables of main results, which
`compare --paper` shows. `notes.toml` holds, per method, how its published accuracies were made. No plugin is imported.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from gcdbench import registry
from gcdbench.errors import PluginError
from gcdbench.records.provenance import package_folder

NOTES = "notes.toml"
_ROW_FACTS = {"key", "label", "method", "backbone", "k", "notes", "doubtful", "average"}


@dataclass(frozen=True)
class PublishedRow:
    """One line of a published table."""

    key: str
    label: str
    method: str
    """Plugin name of the method, installed or not."""
    backbone: str
    cells: Mapping[str, Mapping[str, float]]
    """Numbers by dataset and metric; what was not published is absent."""
    k: Mapping[str, int]
    """Assumed number of classes by dataset, where it is not the true one."""
    average: float | None
    """The table's own average of All, kept as a check."""
    notes: tuple[str, ...]
    doubtful: Mapping[str, str]
    """Datasets whose numbers must not be used as a target, and why."""

    def remarks(self, dataset: str) -> tuple[str, ...]:
        """What a reader of this row's numbers on a dataset must know."""
        return (*self.notes, *((self.doubtful[dataset],) if dataset in self.doubtful else ()))


@dataclass(frozen=True)
class PublishedTable:
    """A published table, figure or study."""

    id: str
    title: str
    source: str
    metrics: tuple[str, ...]
    datasets: tuple[str, ...]
    main: bool
    rows: tuple[PublishedRow, ...]
    file: Path


def published_tables(warn: Callable[[str], None] | None = None) -> dict[str, PublishedTable]:
    """Every table that an installed method plugin ships, by id.

    With ``warn``, a plugin whose tables cannot be used is reported to it and left out, so that it hurts no one else.
    """
    tables: dict[str, PublishedTable] = {}
    for folder in plugin_folders("paper"):
        try:
            found = {table.id: table for table in read_tables(folder)}
            for name in found.keys() & tables.keys():
                raise PluginError(f"{found[name].file} and {tables[name].file} both hold a table called '{name}'.")
            tables |= found
        except PluginError as fault:
            if warn is None:
                raise
            warn(str(fault))
    return tables


def read_tables(folder: Path) -> list[PublishedTable]:
    """The tables in a plugin's `paper` folder."""
    protocol_notes = _read(folder / NOTES).get("method", {}) if (folder / NOTES).is_file() else {}
    found = [_table(path, protocol_notes) for path in sorted(folder.glob("*.toml")) if path.name != NOTES]
    for one, other in combinations(found, 2):
        if one.id == other.id:
            raise PluginError(f"{one.file} and {other.file} both hold a table called '{one.id}'.")
    return found


def plugin_folders(name: str) -> list[Path]:
    """Folders of this name in the packages of installed method plugins: `paper`, `experiments`."""
    found: dict[Path, None] = {}
    for plugin in registry.plugins("method"):
        folder = package_folder(plugin.target)
        if folder is not None and (folder / name).is_dir():
            found[folder / name] = None
    return list(found)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        raise PluginError(f"The file of published numbers {path} cannot be read: {fault}.") from fault


def _table(path: Path, protocol_notes: Mapping[str, str]) -> PublishedTable:
    tree = _read(path)
    try:
        metrics, datasets = tuple(tree["metrics"]), tuple(tree["datasets"])
        rows = tuple(_row(row, metrics, datasets, protocol_notes) for row in tree["row"])
        return PublishedTable(
            tree["id"], tree["title"], tree["source"], metrics, datasets, tree.get("main", False), rows, path
        )
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise PluginError(f"The file of published numbers {path} is not understood: {fault!r}.") from fault


def _row(
    row: Mapping[str, Any], metrics: tuple[str, ...], datasets: tuple[str, ...], protocol_notes: Mapping[str, str]
) -> PublishedRow:
    unknown = set(row) - _ROW_FACTS - set(datasets)
    if unknown:
        raise ValueError(f"row '{row['key']}' has unknown entries {sorted(unknown)}")
    cells = {}
    for dataset in datasets:
        numbers = row.get(dataset, [])
        if len(numbers) > len(metrics):
            raise ValueError(f"row '{row['key']}' has {len(numbers)} numbers for {len(metrics)} metrics")
        if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
            raise ValueError(f"row '{row['key']}' has a number for '{dataset}' that is none")
        if numbers:
            # A shorter list leaves out the last metrics, which were not printed.
            cells[dataset] = dict(zip(metrics, map(float, numbers), strict=False))
    notes = [*row.get("notes", ())]
    if "all" in metrics and row["method"] in protocol_notes:
        notes.append(f"{row['label'].partition(',')[0]}, published: {protocol_notes[row['method']]}")
    return PublishedRow(
        key=row["key"],
        label=row["label"],
        method=row["method"],
        backbone=row["backbone"],
        cells=cells,
        k=row.get("k", {}),
        average=row.get("average"),
        notes=tuple(notes),
        doubtful=row.get("doubtful", {}),
    )
