"""Injects faults for a stated time and prints what came of it."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # equal bits need an equal number of threads, and forks need one

import json
import random
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from tests.support.signals import usual_signals
from tests.torture import faults_in_training, workloads
from tests.torture.faults import FAULTS, Stage, all_events
from tests.torture.scene import Workload, digest

assert faults_in_training  # its faults register themselves


@dataclass
class Tally:
    """What came of one fault."""

    fault: str
    injected: int = 0
    lost: int = 0
    changed: int = 0
    complaints: list[str] = field(default_factory=list)
    """Where a run did not say what it should have said."""


@dataclass
class Known:
    """A workload and its undisturbed result."""

    load: Workload
    result: dict[str, str]
    seconds: float
    events: int
    files: tuple[Path, ...]
    cache: Path


def torture(folder: Path, seconds: float, rounds: int, names: list[str], seed: int, tell: bool) -> list[Tally]:
    """Every fault at least ``rounds`` times, then on and on until the time is up."""
    chance, known = random.Random(seed), {}
    tallies = {name: Tally(name) for name in names}
    until, done = time.monotonic() + seconds, 0
    while done < rounds or time.monotonic() < until:
        for name in names:
            if done >= rounds and time.monotonic() >= until:
                break
            load = FAULTS[name][0]
            if load not in known:
                known[load] = _known(load, folder / load.replace(" ", "-"))
            _inject(name, known[load], folder / f"round-{done}", chance, tallies[name])
            if tell:
                print(
                    f"\r{sum(t.injected for t in tallies.values())} faults injected  {name:60}", end="", file=sys.stderr
                )
        done += 1
    if tell:
        print(file=sys.stderr)
    return list(tallies.values())


def _known(name: str, folder: Path) -> Known:
    cache, files = folder / "cache", ()
    if name == "digits":
        load = workloads.digits(cache)
    elif name == "stored":
        load = workloads.stored(cache)
    else:
        files = tuple(workloads.write_photos(folder / "photos"))
        load = workloads.photos(folder / "photos", cache, ("--no-image-store",) if name == "photos" else ())
    if name == "packed photos":
        load = Workload(load.name, load.arguments, _packing)
    events = all_events(load, folder / "counted")
    started = time.monotonic()
    code, text = load.finish(folder / "reference")
    if code:
        raise SystemExit(f"The undisturbed run failed: {text}")
    return Known(load, digest(folder / "reference"), time.monotonic() - started, events, files, cache)


def _packing() -> None:
    """However few images there are, they are decoded by processes and packed."""
    from gcdbench.data import images
    from gcdbench.data.formats import decoding

    workloads.quick_saves()
    decoding.ALONE = images.KEEP_BYTES = 0


def _inject(name: str, known: Known, folder: Path, chance: random.Random, tally: Tally) -> None:
    runs = folder / "runs"
    stage = Stage(runs, known.load, known.seconds, known.events, chance, known.files, known.cache)
    complaint = FAULTS[name][1](stage)
    code, text = known.load.finish(runs)
    found = digest(runs)
    tally.injected += 1
    if code or found.keys() != known.result.keys():
        tally.lost += 1
        complaint = complaint or f"the same command again ended with {code}: {text.strip()[-400:]}"
    elif found != known.result:
        tally.changed += 1
    if complaint:
        tally.complaints.append(complaint)
    shutil.rmtree(folder, ignore_errors=True)


@click.command()
@click.option("--minutes", type=float, default=0.0, help="How long; every fault is injected at least --rounds times.")
@click.option("--rounds", type=int, default=1, show_default=True)
@click.option("--only", multiple=True, help="Faults whose name contains this.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(minutes: float, rounds: int, only: tuple[str, ...], seed: int, as_json: bool) -> None:
    """Break runs on purpose, give the same command again, and compare every bit with the undisturbed run."""
    import torch

    torch.set_num_threads(1)
    usual_signals()  # also where they were ignored, in a background job
    import gcdbench_rlcd  # noqa: F401  # imported before forking, so that no process pays for it

    from gcdbench.backbone.timm_import import import_timm
    from gcdbench.cli.output import print_table

    import_timm()
    names = [name for name in FAULTS if not only or any(word in name for word in only)]
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="gcdbench-torture-"))
    try:
        tallies = torture(folder, 60 * minutes, rounds, names, seed, not as_json and sys.stderr.isatty())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(json.dumps([asdict(tally) for tally in tallies], indent=2))
    else:
        rows = [[t.fault, str(t.injected), str(t.lost), str(t.changed), str(len(t.complaints))] for t in tallies]
        total = [sum(int(row[i]) for row in rows) for i in range(1, 5)]
        columns = ["Fault", "Injected", "Runs lost", "Results changed", "Wrong words"]
        title = f"Fault suite, seed {seed}, {(time.monotonic() - started) / 60:.1f} minutes"
        print_table(title, columns, [*rows, ["all", *map(str, total)]])
        for tally in tallies:
            for complaint in dict.fromkeys(tally.complaints):
                print(f"{tally.fault}: {complaint}")
    if any(t.lost or t.changed or t.complaints for t in tallies):
        sys.exit(1)


if __name__ == "__main__":
    main()
