"""`gcdbench verify`."""

from __future__ import annotations

from pathlib import Path

import click

from gcdbench.cli import completion
from gcdbench.cli.options import runs_option
from gcdbench.cli.output import json_option, out, print_json, print_table, print_words
from gcdbench.errors import GcdbenchError, UsageError


@click.command("verify")
@click.argument("names", metavar="[RUN]...", nargs=-1, shell_complete=completion.runs)
@runs_option
@json_option
def verify_command(names: tuple[str, ...], runs: Path, as_json: bool) -> None:
    """Score the predictions of finished runs again and compare every metric with their records.

    RUN is a run's directory, its id or the beginning of its id; without one, all finished runs are verified. Exit code
    1 if a record does not say what the predictions say, or if either was changed since the run was finished.
    """
    from gcdbench.records.find import find_run, run_folders
    from gcdbench.runs.verify import Verdict, verify_run

    folders = [find_run(name, runs) for name in names] or list(run_folders(runs))
    finished = [folder for folder in folders if (folder / "record.json").is_file()]
    if names and len(finished) < len(folders):
        waiting = next(folder for folder in folders if folder not in finished)
        raise UsageError(f"The run in {waiting} is unfinished: there is no record to verify.")
    if not finished:
        raise UsageError(f"There are no finished runs in {runs}.")
    verdicts = []
    for folder in finished:
        try:
            verdicts.append(verify_run(folder))
        except GcdbenchError as fault:  # a record or predictions that cannot be read at all
            verdicts.append(Verdict(folder.name, str(folder), 0, (str(fault),), ()))
    wrong = [verdict for verdict in verdicts if not verdict.ok]
    if as_json:
        print_json({"runs": [verdict.as_dict() for verdict in verdicts], "ok": not wrong})
    else:
        rows = [[v.run_id, str(v.checked), "yes" if v.ok else "no"] for v in verdicts]
        print_table("Predictions scored again", ["Run", "Metrics that agree", "Verified"], rows)
        for verdict in verdicts:
            for text in (*verdict.problems, *(f"Note: {note}" for note in verdict.notes)):
                print_words(out(), f"{verdict.run_id}: {text}")
    if wrong:
        raise GcdbenchError(f"{len(wrong)} of {len(verdicts)} records do not say what their predictions say.")
