"""`gcdbench estimate-k`."""

from __future__ import annotations

from typing import Any

import click

from gcdbench.cli.environment_options import cache_option, take_environment
from gcdbench.cli.options import data_root_option, device_option, set_option
from gcdbench.cli.output import json_option, out, print_json, print_table, print_words

SHOWN = 12
"""Numbers of classes whose scores are shown."""


@click.command("estimate-k")
@click.option("--dataset", required=True, help="Dataset, see `gcdbench list datasets`.")
@click.option("--estimator", default="max-acc", show_default=True, help="See `gcdbench list k-estimators`.")
@click.option("--backbone", help="`dino`, `dinov2`, `digits-vit` or any timm ViT.")
@click.option(
    "--largest",
    type=click.IntRange(1),
    help="Largest number that is considered.  [default: a third of the images, at most 1000]",
)
@click.option("--force", is_flag=True, help="Estimate again instead of taking an answer from the cache.")
@set_option
@data_root_option
@device_option
@cache_option
@json_option
def estimate_k_command(
    dataset: str,
    estimator: str,
    backbone: str | None,
    largest: int | None,
    force: bool,
    assignments: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Estimate how many classes a dataset has, from its images and visible labels alone.

    `gcdbench run --k ESTIMATOR` trains with the number that is found. Answers are kept in the cache.
    """
    from pathlib import Path

    from gcdbench.cli.progress import Display
    from gcdbench.config.coercion import parse_assignment
    from gcdbench.experiments.estimate_classes import EstimateRequest, estimate_classes
    from gcdbench.prepare.estimate_k import reliability

    environment = take_environment({**options, "runs": Path("runs")})
    settings = dict(parse_assignment(a) for a in assignments)
    request = EstimateRequest(dataset, estimator, backbone, largest, force, settings)
    with Display() as display:
        answer = estimate_classes(request, environment, display)
    found, split = answer.found, answer.data.split
    if as_json:
        facts = {"dataset": answer.config.dataset, "backbone": answer.config.backbone.name}
        counts = {"base_classes": len(split.base), "true_k": answer.true_k}
        print_json({**facts, **counts, **found.as_dict()})
        return
    best = sorted(found.scores, key=lambda k: (-found.scores[k], k))[:SHOWN]
    rows = [[str(k), f"{100 * found.scores[k]:.2f}"] for k in sorted(best)]
    if rows:
        print_table(f"{found.estimator} on {answer.config.dataset}: best of {len(found.scores)}", ["K", "Score"], rows)
    known = "" if answer.true_k is None else f"; the data set says {answer.true_k}"
    out().print(f"K = {found.k} ({found.estimator}, {len(split.base)} base classes{known}).", markup=False)
    if doubt := reliability(len(split.base)):
        print_words(out(), doubt.strip())
