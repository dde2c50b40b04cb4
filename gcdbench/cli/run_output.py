"""Result tables of `gcdbench run`."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gcdbench.analysis.setups import spell
from gcdbench.cli.output import next_step, out, print_json, print_table, print_words
from gcdbench.config.resolve import flat_config
from gcdbench.data.store.store_folder import spoken_size
from gcdbench.records.record import Record
from gcdbench.records.summary import HEADLINE, spoken


def print_results(records: Sequence[Record], as_json: bool, earlier: Sequence[str] = ()) -> None:
    """A table per method: one row per seed and their mean; ``earlier`` are the ids of runs that were there before."""
    if as_json:
        keys = ("method", "recipe", "seed", "run_id", "dir", "metrics")
        print_json({"runs": [{key: getattr(r, key) for key in keys} for r in records]})
        return
    by_method: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        by_method.setdefault((record.method, record.recipe), []).append(record)
    for found in by_method.values():
        _print_method(found, earlier)
    if records:
        next_step(f"gcdbench show {records[0].run_id}, gcdbench report {records[0].run_id} -o report.html")


def _print_method(records: Sequence[Record], earlier: Sequence[str]) -> None:
    first = records[0]
    title = f"{first.method} ({first.recipe}) on {first.dataset}, {first.backbone['name']}"
    if "all" not in first.metrics:
        for record in records:
            _print_discovery(record, title)
            _print_earlier([record], earlier)
        return
    rows = [[str(r.seed), *(_cell(r.metrics, key) for key in HEADLINE), r.run_id] for r in records]
    if len(records) > 1:
        means = [spoken([r.metrics[k] for r in records if k in r.metrics]) for k in HEADLINE]
        rows.append(["mean ± std", *means, f"n = {len(records)}"])
    print_table(title, ["Seed", *HEADLINE.values(), "Run"], rows)
    scored = first.data["scored"]
    console = out()
    print_words(
        console,
        f"Cluster accuracy (v2) in percent on {scored:,} {first.protocol['scored_rows']} rows, "
        f"{first.selected['rule']} epoch; OB: oracle base accuracy.",
    )
    where = first.dir if len(records) == 1 else f"{Path(first.dir).parent}/ and the run's id"
    print_words(console, f"Run director{'y' if len(records) == 1 else 'ies'}: {where}")
    _print_earlier(records, earlier)


def _print_earlier(records: Sequence[Record], earlier: Sequence[str]) -> None:
    """That runs were finished before, and when."""
    for record in records:
        if record.run_id in earlier:
            when = record.finished[:16].replace("T", " ") or "before"
            print_words(
                out(), f"Seed {record.seed} was finished {when} UTC and is not repeated (--force does); {record.dir}"
            )


def _cell(metrics: dict[str, float], key: str) -> str:
    return f"{metrics[key]:.1f}" if key in metrics else "-"


def _print_discovery(record: Record, title: str) -> None:
    """Where the truth is unknown: how many images went into each class or new group."""
    table = Path(record.dir) / "predictions.csv"
    with table.open(newline="", encoding="utf-8", errors="surrogateescape") as stream:
        sizes = Counter(row["name"] for row in csv.DictReader(stream))
    print_table(
        f"{title}, seed {record.seed}",
        ["Class or new group", "Images"],
        [[name, str(count)] for name, count in sizes.most_common()],
    )
    print_words(out(), f"Every image with its group: {table}")


_APART = ("config", "sources", "presets", "stores", "notes")
"""Parts of a plan that are printed below its table."""


def _spoken(key: str, value: Any) -> list[str]:
    if key.endswith("_bytes"):
        return [key.removesuffix("_bytes").replace("_", " "), spoken_size(value)]
    return [key.replace("_", " "), str(value)]


def print_plans(plans: Sequence[dict[str, Any]], as_json: bool) -> None:
    """What would run."""
    if as_json:
        print_json({"plan": list(plans)})
        return
    console = out()
    for plan in plans:
        print_table(
            f"{plan['method']} ({plan['recipe']}) on {plan['dataset']}, seed {plan['seed']}",
            ["What", "Value"],
            [_spoken(key, plan[key]) for key in plan if key not in _APART],
        )
        for name, state in plan["stores"].items():
            print_words(console, f"Store of {name}: {state}.")
        for note in plan["notes"]:
            print_words(console, f"Note: {note}")
        for preset in plan["presets"]:
            print_words(console, f"Preset: {preset}")
    for plan in {(p["method"], p["recipe"], p["dataset"]): p for p in reversed(plans)}.values():
        flat = flat_config(plan["config"])
        rows = [[key, spell(flat[key]), source] for key, source in plan["sources"].items()]
        print_table(f"Config of {plan['method']} ({plan['recipe']})", ["Key", "Value", "From"], rows)
