"""`gcdbench show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gcdbench.cli import completion
from gcdbench.cli.options import runs_option
from gcdbench.cli.output import json_option, out, print_json, print_table, print_words
from gcdbench.config.resolve import flat_config
from gcdbench.errors import UsageError
from gcdbench.records.find import find_run
from gcdbench.records.record import Record, read_record
from gcdbench.records.summary import spoken_flops, spoken_k, spoken_times
from gcdbench.system.files import read_json


@click.command("show")
@click.argument("run", shell_complete=completion.runs)
@runs_option
@json_option
def show_command(run: str, runs: Path, as_json: bool) -> None:
    """Show a run: RUN is its directory, its id or the beginning of its id."""
    folder = find_run(run, runs)
    if not (folder / "record.json").is_file():
        from gcdbench.records.run_directory import RunDirectory

        try:
            planned = read_json(folder / "config.json")["train"]["epochs"]
        except (OSError, ValueError, KeyError, TypeError) as fault:
            raise UsageError(f"{folder} is no run directory: its config.json cannot be understood.") from fault
        raise UsageError(
            f"The run in {folder} is unfinished: {len(RunDirectory(folder).epochs())} of {planned} epochs are done. "
            "Give its `gcdbench run` command again to continue."
        )
    record = read_record(folder / "record.json")
    if as_json:
        print_json(record.as_dict())
    else:
        _print(record)


def _print(record: Record) -> None:
    facts = {
        "Directory": record.dir,
        "Backbone": f"{record.backbone['name']} ({record.backbone['architecture']}), "
        f"weights {record.backbone['weights_hash']}",
        "Rows": f"{record.data['labelled']:,} labelled, {record.data['unlabelled']:,} unlabelled",
        "Classes": f"{record.data['base_classes']} base, {record.data['novel_classes']} novel, "
        f"{spoken_k(record.protocol)}{_estimator(record)}, {record.data.get('clusters', '?')} predicted",
        "Scored": f"{record.data['scored']:,} {record.protocol['scored_rows']} rows, "
        f"epoch {record.selected['epoch']} (rule: {record.selected['rule']})",
        "Fingerprint": record.fingerprint,
        "Parameters": f"{record.parameters['trained']:,} trained of {record.parameters['total']:,}",
        "Device": f"{record.device}, {record.config['train']['precision']}, "
        f"peak memory {record.peak_memory / 2**20:,.0f} MiB",
        "Time": spoken_times(record),
        "One step": spoken_flops(record),
        "Source": ", ".join(f"{what} {_commit(state)}" for what, state in record.git.items()),
        "Finished": record.finished or "unknown",
    }
    title = f"{record.method} ({record.recipe}) on {record.dataset}, seed {record.seed}, run {record.run_id}"
    print_table(title, ["What", "Value"], [[k, v] for k, v in facts.items()])
    print_table("Metrics", ["Metric", "Value"], [[k, f"{v:.2f}"] for k, v in sorted(record.metrics.items())])
    flat = flat_config(record.config)
    changed = [[k, str(flat[k]), source] for k, source in record.sources.items() if source != "default"]
    print_table("Config that is not default", ["Key", "Value", "From"], changed)
    for warning in record.warnings:
        print_words(out(), f"Note: {warning}")


def _estimator(record: Record) -> str:
    found = record.k_estimate
    return "" if found is None else f" by {found['estimator']} ({found['package']})"


def _commit(state: dict[str, Any] | None) -> str:
    if state is None:
        return "not under git"
    return f"{state['commit'][:12]}{', changed' if state['dirty'] else ''}"
