"""`gcdbench score`."""

from __future__ import annotations

from pathlib import Path

import click

from gcdbench.cli.options import PathType
from gcdbench.cli.output import json_option, print_json, print_table


@click.command("score")
@click.argument("file", type=PathType(path_type=Path))
@json_option
def score_command(file: Path, as_json: bool) -> None:
    """Score predictions of any code: FILE is an .npz with y_true, y_pred (whole numbers) and num_base.

    A row is of a base class where y_true < num_base. The predictions.npz of a run can be given as well.
    """
    from gcdbench.evaluation.score import score_file

    result = score_file(file)
    if as_json:
        print_json(result)
        return
    rows = []
    for name in ("v1", "v2", "v2b"):
        cells = [result[name][side] for side in ("all", "base", "novel")]
        rows.append([name, *("-" if c is None else f"{100 * c:.2f}" for c in cells)])
    print_table(f"Cluster accuracy of {file} in percent", ["Variant", "All", "Base", "Novel"], rows)
    click.echo(f"NMI {result['nmi']:.4f}  ARI {result['ari']:.4f}")
