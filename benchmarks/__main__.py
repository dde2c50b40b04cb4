"""`python -m benchmarks`: speed and exactness."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gcdbench.cli.options import PathType
from gcdbench.cli.output import err, json_option, out, print_json, print_table
from gcdbench.errors import GcdbenchError, unknown

if TYPE_CHECKING:
    from benchmarks.figure import Claim, Figure, Growth


@click.command("benchmarks")
@click.option("--quick", is_flag=True, help="Smaller and noisier: about two minutes instead of eight.")
@click.option("--only", multiple=True, help="Only this benchmark, repeatable.")
@click.option("-o", "--output", type=PathType(path_type=Path, dir_okay=False), help="Also write the figures as JSON.")
@json_option
def bench_command(quick: bool, only: tuple[str, ...], output: Path | None, as_json: bool) -> None:
    """Measure what sharing, stores and exact tails save, against steps in the shape of public GCD scripts.

    Every figure is a ratio within this run, at ViT-B/16 geometry with random weights. Exit code 1 if a claim of
    exactness does not hold or a ratio is below half of its bar.
    """
    from benchmarks.figure import Claim, Figure, Growth
    from benchmarks.run import PARTS, run_bench
    from gcdbench.system.files import write_json

    for name in only:
        if name not in PARTS:
            raise unknown("benchmark", name, PARTS)
    found: list[Any] = []
    for one in run_bench(quick, only, lambda name: err().print(f"{name} ...", markup=False)):
        found.append(one)
        err().print(f"  {_line(one)}", markup=False, soft_wrap=True)
    data = {"quick": quick, "machine": _machine(), "results": [one.as_dict() for one in found]}
    if output is not None:
        write_json(output, data)
    if as_json:
        print_json(data)
    else:
        _print(found)
    broken = [one.name for one in found if isinstance(one, Claim) and not one.holds]
    broken += [one.name for one in found if isinstance(one, Figure) and not one.halfway]
    if broken:
        raise GcdbenchError(f"{len(broken)} benchmarks failed: {'; '.join(broken)}.")
    assert all(isinstance(one, Claim | Figure | Growth) for one in found)


def _print(found: list[Any]) -> None:
    from benchmarks.figure import Claim, Figure, Growth

    figures = [one for one in found if isinstance(one, Figure)]
    rows = [[f.name, f"{f.value:.2f}x", _bar(f), "yes" if f.reached else "no", f.detail] for f in figures]
    if rows:
        print_table("Ratios", ["Measured", "Ratio", "Bar", "Reached", "Times"], rows)
    growths = [one for one in found if isinstance(one, Growth)]
    if growths:
        rows = [[g.name, _steps(g), "yes" if g.linear else f"no: {g.detail}"] for g in growths]
        print_table("Growth", ["Cost", "At", "Linear or better"], rows)
    claims = [one for one in found if isinstance(one, Claim)]
    if claims:
        rows = [[c.name, "yes" if c.holds else "NO", c.detail] for c in claims]
        print_table("Exactness", ["Claim", "Holds", "Difference"], rows)
    out().print("; ".join(f"{k} {v}" for k, v in _machine().items()), markup=False, soft_wrap=True)


def _line(one: Figure | Claim | Growth) -> str:
    from benchmarks.figure import Claim, Figure

    if isinstance(one, Figure):
        return f"{one.name}: {one.value:.2f}x (bar {_bar(one)}; {one.detail})"
    if isinstance(one, Claim):
        return f"{one.name}: {'yes' if one.holds else 'NO'} {one.detail}"
    return f"{one.name}: {_steps(one)}"


def _bar(figure: Figure) -> str:
    return f"{'≥' if figure.at_least else '≤'} {figure.bar:g}"


def _steps(growth: Growth) -> str:
    pairs = zip(growth.sizes, growth.costs, strict=True)
    return ", ".join(f"{size:,}: {cost:.3g} {growth.unit}" for size, cost in pairs)


def _machine() -> dict[str, str]:
    import os
    import platform

    import torch

    return {
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
    }


def main() -> None:
    """Run it; a sentence and an exit code for what goes wrong."""
    try:
        bench_command.main(standalone_mode=False)
    except GcdbenchError as fault:
        err().print(f"Error: {fault}", markup=False)
        sys.exit(fault.exit_code)
    except click.ClickException as fault:
        fault.show()
        sys.exit(2)


if __name__ == "__main__":
    main()
