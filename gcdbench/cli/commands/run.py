"""`gcdbench run`."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import click

from gcdbench.cli import completion
from gcdbench.cli.environment_options import environment_options, on_ranks
from gcdbench.cli.options import ClassNumber, PathType, Seeds, asked_look, debugging_options, set_option
from gcdbench.cli.output import json_option


@click.command("run")
@click.option(
    "--method",
    shell_complete=completion.plugins("method", listed=True),
    help="Method plugin, see `gcdbench list methods`; several as A,B or A:RECIPE,A.",
)
@click.option("--dataset", shell_complete=completion.plugins("dataset"), help="Dataset, see `gcdbench list datasets`.")
@click.option(
    "--recipe", shell_complete=completion.recipes, help="Named variant of the method; default is the method's first."
)
@click.option("--backbone", shell_complete=completion.backbones, help="`dino`, `dinov2`, `digits-vit` or any timm ViT.")
@click.option("--seed", "seeds", type=Seeds(), help="One or more seeds: 0 or 0,1,2 or 0-4.  [default: 0]")
@click.option("--epochs", type=int, help="Number of epochs.")
@click.option(
    "--k",
    type=ClassNumber(),
    help="Number of classes the method assumes, or what finds it (`gcdbench list k-estimators`).  [default: true one]",
)
@click.option("--label-ratio", type=float, help="Share of base-class images that are labelled.  [default: 0.5]")
@click.option("--novel-ratio", type=float, help="Share of novel classes (only upwards of the published one).")
@set_option
@click.option("--config", type=PathType(path_type=Path), help="TOML file with [run], [train], [method], ...")
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16", "fp64"]), help="Precision of trunk and tail.")
@click.option("--compile", is_flag=True, default=None, help="Compile the trunk; equal up to rounding.")
@click.option(
    "--store-tokens",
    type=click.Choice(["fp32", "bf16", "fp16"]),
    help="Keep trunk tokens of evaluation views on disk; fp32 is exact, the others round.",
)
@click.option(
    "--train-views", type=click.IntRange(1), help="Train on this many stored views of each image. Fast, not exact."
)
@click.option(
    "--on-bad-image",
    type=click.Choice(["stop", "skip"]),
    help="Stop at an image that cannot be read, or leave it out and list it.  [default: stop]",
)
@environment_options
@click.option(
    "--track",
    multiple=True,
    metavar="TRACKER",
    help="Also follow the run with this, see `gcdbench list trackers`.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, print the plan and a time estimate, then stop.")
@click.option("--force", is_flag=True, help="Repeat runs that are finished or unfinished.")
@debugging_options
@json_option
def run_command(
    assignments: tuple[str, ...],
    track: tuple[str, ...],
    dry_run: bool,
    force: bool,
    as_json: bool,
    traceback: bool,
    pdb: bool,
    **options: Any,
) -> None:
    """Train a method on a dataset and score it, once per seed. Several methods share the work of the trunk.

    A finished run is shown, an unfinished one resumed. Values are resolved from the defaults, the recipe's
    preset, --config, --set and the options, in this order.
    """
    from gcdbench.cli.progress import show_progress
    from gcdbench.cli.run_output import print_plans, print_results
    from gcdbench.config.coercion import parse_assignment
    from gcdbench.prepare.request import RunRequest
    from gcdbench.records.trackers import check_names
    from gcdbench.runs.dry_run import describe_requests
    from gcdbench.runs.execute import ExecuteOptions, all_records, execute
    from gcdbench.system.debugging import looking

    check_names(track)
    with on_ranks(options, alone=dry_run) as environment:
        request = RunRequest(settings=dict(parse_assignment(a) for a in assignments), **options)
        # What a plugin prints is not the answer.
        sole = sum(len(each.seeds or (0,)) for each in request.each()) == 1
        printing = redirect_stdout(sys.stderr) if as_json else nullcontext()
        with (
            show_progress(pdb, sole) as display,
            printing,
            looking(asked_look(traceback, pdb)),
        ):
            if dry_run:
                plans = describe_requests(request.each(), environment, display, force)
            else:
                results = execute(request.each(), environment, display, ExecuteOptions(force, track))
        if dry_run:
            print_plans(plans, as_json)
            return
        once = {r.record.run_id: r.record for r in results if r.record is not None}
        print_results(
            list(once.values()), as_json, [r.record.run_id for r in results if r.earlier and r.record is not None]
        )
        all_records(results)  # whatever failed is reported after the results of what did not
