"""`gcdbench run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gcdbench.cli.options import Seeds, data_root_option, device_option, runs_option, set_option, workers_option
from gcdbench.cli.output import json_option


@click.command("run")
@click.option("--method", help="Method plugin, see `gcdbench list methods`.")
@click.option("--dataset", help="Dataset, see `gcdbench list datasets`.")
@click.option("--recipe", help="Named variant of the method; default is the method's first.")
@click.option("--backbone", help="`dino`, `dinov2`, `digits-vit` or any timm ViT.")
@click.option("--seed", "seeds", type=Seeds(), help="One or more seeds: 0 or 0,1,2 or 0-4.  [default: 0]")
@click.option("--epochs", type=int, help="Number of epochs.")
@click.option("--k", type=int, help="Number of classes the method assumes (default: the true number).")
@click.option("--label-ratio", type=float, help="Share of base-class images that are labelled.  [default: 0.5]")
@click.option("--novel-ratio", type=float, help="Share of novel classes (only upwards of the published one).")
@set_option
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with [run], [train], [method], ...")
@device_option
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]), help="Precision of trunk and tail.")
@runs_option
@data_root_option
@workers_option
@click.option(
    "--track",
    multiple=True,
    metavar="TRACKER",
    help="Also follow the run with this, see `gcdbench list trackers`.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, print the plan and a time estimate, then stop.")
@click.option("--force", is_flag=True, help="Repeat runs that are finished or unfinished.")
@json_option
def run_command(
    assignments: tuple[str, ...],
    device: str,
    runs: Path,
    data_root: Path | None,
    workers: int | None,
    track: tuple[str, ...],
    dry_run: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a method on a dataset and score it, once per seed.

    A finished run is shown, an unfinished one continued. Values are resolved from the defaults, the recipe's
    preset, --config, --set and the options, in this order.
    """
    from gcdbench.cli.progress import Display
    from gcdbench.cli.run_output import print_plans, print_results
    from gcdbench.coercion import parse_assignment
    from gcdbench.data.locate import data_root as choose_root
    from gcdbench.engine.preflight import describe_plan
    from gcdbench.engine.request import RunRequest, plan
    from gcdbench.engine.run import execute, workspaces
    from gcdbench.engine.trackers import check_names

    check_names(track)
    request = RunRequest(settings=dict(parse_assignment(a) for a in assignments), **options)
    planned = plan(request)
    display = Display()
    with display:
        spaces = workspaces(planned, device, choose_root(data_root), workers, display)
        if dry_run:
            plans = [describe_plan(space, runs) for space in spaces]
        else:
            records = [execute(space, runs, force, display, track) for space in spaces]
    if dry_run:
        print_plans(plans, as_json)
    else:
        print_results(records, as_json)
