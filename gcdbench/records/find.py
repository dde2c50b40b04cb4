"""Finding run directories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gcdbench.errors import GcdbenchError, UsageError, nearest
from gcdbench.records.record import Record, read_record


def run_folders(runs: Path) -> Iterator[Path]:
    """Every run directory below ``runs``, finished or not."""
    return (path.parent for path in sorted(runs.glob("*/*/*/config.json")))


def read_runs(runs: Path) -> tuple[list[Record], list[Path], list[str]]:
    """Records of finished runs, directories of unfinished ones, and a sentence for each record that cannot be read."""
    records: list[Record] = []
    unfinished: list[Path] = []
    faults: list[str] = []
    for folder in run_folders(runs):
        file = folder / "record.json"
        if not file.is_file():
            unfinished.append(folder)
            continue
        try:
            records.append(read_record(file))
        except GcdbenchError as fault:
            faults.append(str(fault))
    return records, unfinished, faults


def find_run(name: str, runs: Path) -> Path:
    """The run directory of a path, an id or the beginning of an id."""
    path = Path(name)
    with suppress(OSError, ValueError):  # no path that this system could have
        if (path / "config.json").is_file():
            return path
    folders = list(run_folders(runs))
    hits = [folder for folder in folders if folder.name.startswith(name)] if name else []
    if len(hits) == 1:
        return hits[0]
    if len(hits) > 1:
        raise UsageError(f"'{name}' fits {len(hits)} runs in {runs}; give more of the id.")
    close = nearest(name, [folder.name for folder in folders])
    hint = f" Did you mean '{close}'?" if close else ""
    raise UsageError(f"There is no run '{name}' in {runs} ({len(folders)} runs there).{hint}")
