"""`gcdbench check`."""

from __future__ import annotations

from pathlib import Path

import click

from gcdbench.cli.options import PathType
from gcdbench.cli.output import json_option, print_json, print_table
from gcdbench.errors import GcdbenchError


@click.command("check")
@click.argument("method")
@click.option(
    "--trajectory",
    type=PathType(path_type=Path),
    required=True,
    help="Recorded reference trajectory (.npz).",
)
@click.option("--recipe", help="Recipe of the method; default is the method's first.")
@click.option("--param-groups", "variant", default="plain", show_default=True, help="Recorded parameter-group variant.")
@json_option
def check_command(method: str, trajectory: Path, recipe: str | None, variant: str, as_json: bool) -> None:
    """Replay a recorded reference trajectory through METHOD and show how far it deviates.

    Exit code 1 if a loss term or a final tensor deviates by more than 1e-4.
    """
    from gcdbench import registry
    from gcdbench.presets import recipe_name
    from gcdbench.testing.trajectory import TOLERANCE, replay

    method_class = registry.load("method", method)
    recipe = recipe_name(method, method_class.recipes, recipe)
    found = replay(method_class, trajectory, recipe, variant)
    worst = max(found, key=lambda d: d.largest)
    ok = worst.largest <= TOLERANCE
    if as_json:
        finite = [{"name": d.name, "deviation": _finite(d.largest), "step": d.at_step} for d in found]
        print_json({"method": method, "recipe": recipe, "param_groups": variant, "ok": ok, "terms": finite})
    else:
        rows = [[d.name, f"{d.largest:.2e}", "" if d.at_step is None else str(d.at_step)] for d in found]
        print_table(f"{method} ({recipe}, {variant}) against {trajectory}", ["What", "Deviation", "At step"], rows)
    if not ok:
        raise GcdbenchError(
            f"'{worst.name}' deviates by {worst.largest:.2e}, more than {TOLERANCE:.0e}: not the same method."
        )


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value
