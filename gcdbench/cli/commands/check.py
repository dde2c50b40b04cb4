"""`gcdbench check`."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gcdbench.cli import completion
from gcdbench.cli.options import PathType, asked_look, data_root_option, debugging_options
from gcdbench.cli.output import err, json_option, out, print_json, print_table, print_words
from gcdbench.errors import GcdbenchError, PluginError, UsageError, unknown

if TYPE_CHECKING:
    from gcdbench.testing.kit import Report


@click.command("check")
@click.argument("name", required=False, shell_complete=completion.plugins("method"))
@click.option("--kind", help="method, dataset, evaluator or k-estimator, where a name could be several.")
@click.option("--recipe", help="Recipe of a method; default is the method's first (--trajectory: the best).")
@click.option("--only", multiple=True, metavar="CHECK", help="Run only this check and those it builds on.")
@click.option("--list", "listing", is_flag=True, help="List the checks with what they mean.")
@data_root_option
@click.option(
    "--trajectory",
    type=PathType(path_type=Path),
    help="Instead replay this recorded reference trajectory (.npz) through a method.",
)
@click.option("--param-groups", "variant", metavar="VARIANT", help="Replay only this variant of the recording.")
@debugging_options
@json_option
def check_command(
    name: str | None, kind: str | None, recipe: str | None, listing: bool, as_json: bool, **options: Any
) -> None:
    """Check whether the plugin NAME does what gcdbench expects of it: the conformance kit.

    Each check says what is wrong and what usually helps. A plugin declares checks that it is known to fail, with the
    reason, in `expected_failures`. Exit code 1 if another one fails.

    With --trajectory, replay a recorded reference trajectory through a method, all of its variants, and show how far it
    deviates; exit code 1 if a loss term, a gradient or a final tensor deviates by more than 1e-4. Without --recipe, the
    recipe that agrees best is shown.
    """
    if listing:
        _list(kind, as_json)
        return
    if name is None:
        raise UsageError("Name a plugin (see `gcdbench list methods`), or list the checks with --list.")
    if options["trajectory"] is not None:
        _replay(name, options["trajectory"], recipe, options["variant"], as_json)
        return
    from gcdbench import registry
    from gcdbench.system.debugging import looking
    from gcdbench.testing.kit import Report
    from gcdbench.testing.subject import find_kind, open_session

    kind = find_kind(name, kind)
    plugin = registry.get(kind, name)
    reason = registry.probe([plugin])[
        plugin.name
    ].reason  # an import that ends or stops the process must not end this one
    if reason is not None:
        raise PluginError(f"The {kind} plugin '{plugin.name}' ({plugin.package} {plugin.version}) is broken: {reason}")
    _, session = open_session(name, kind, options["data_root"], recipe)
    only: tuple[str, ...] = options["only"]
    session.require(only)
    outcomes = []
    console = err()
    # What a plugin prints is not the answer.
    look = asked_look(options["traceback"], options["pdb"])
    printing = nullcontext() if options["pdb"] else redirect_stdout(sys.stderr)
    with console.status("", spinner="dots") as status, printing, looking(look):
        if options["pdb"]:
            status.stop()
        for number, which in enumerate(only or session.checks, 1):
            status.update(f"checking {number} of {len(only or session.checks)}: {which}")
            outcomes.append(session.outcome(which))
    report = Report(kind, name, tuple(outcomes))
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report)
    if not report.ok:
        raise GcdbenchError(f"The {kind} '{name}' does not pass its checks.")


def _print(report: Report) -> None:
    rows = [[o.check.name, o.status, o.detail, f"{o.seconds:.1f}"] for o in report.outcomes]
    print_table(f"{report.kind} {report.name}", ["Check", "Outcome", "Why", "Seconds"], rows)
    for outcome in report.of("failed", "passed unexpectedly"):
        text = f"{outcome.check.name}: {outcome.check.explains}\n  What helps: {outcome.check.fix}"
        print_words(out(), text)
    print_words(out(), report.summary().splitlines()[0])


def _list(kind: str | None, as_json: bool) -> None:
    from gcdbench.testing.kit import CHECKS, checks_of

    if kind is not None and kind not in CHECKS:
        raise unknown("kind of plugin called", kind, CHECKS)
    found = {each: checks_of(each) for each in CHECKS if kind in (None, each)}
    if as_json:
        facts = ("name", "explains", "fix", "needs")
        print_json(
            {each: [{f: getattr(c, f) for f in facts} for c in checks.values()] for each, checks in found.items()}
        )
        return
    for each, checks in found.items():
        print_table(f"Checks of {each}s", ["Check", "What must hold"], [[c.name, c.explains] for c in checks.values()])


def _replay(method: str, trajectory: Path, recipe: str | None, variant: str | None, as_json: bool) -> None:
    from gcdbench import registry
    from gcdbench.config.presets import recipe_name
    from gcdbench.testing.recording import Recording
    from gcdbench.testing.trajectory import TOLERANCE, replay

    method_class = registry.load("method", method)
    variants = Recording(trajectory).variants() if variant is None else [variant]
    # No one can see which recipe a recording is of: unless one is named, it is the one that agrees best.
    recipes = method_class.recipes if recipe is None else (recipe_name(method, method_class.recipes, recipe),)
    tried = {
        name: [(each, d) for each in variants for d in replay(method_class, trajectory, name, each)] for name in recipes
    }
    recipe, found = min(tried.items(), key=lambda item: max(d.largest for _, d in item[1]))
    where, worst = max(found, key=lambda pair: pair[1].largest)
    ok = worst.largest <= TOLERANCE
    if as_json:
        terms = [
            {"variant": each, "name": d.name, "deviation": _finite(d.largest), "step": d.at_step} for each, d in found
        ]
        print_json({"method": method, "recipe": recipe, "param_groups": ", ".join(variants), "ok": ok, "terms": terms})
    else:
        for each in variants:
            rows = [
                [d.name, f"{d.largest:.2e}", "" if d.at_step is None else str(d.at_step)]
                for of, d in found
                if of == each
            ]
            print_table(f"{method} ({recipe}, {each}) against {trajectory}", ["What", "Deviation", "At step"], rows)
    if not ok:
        raise GcdbenchError(
            f"'{worst.name}' ({recipe}, {where}) deviates by {worst.largest:.2e}, more than {TOLERANCE:.0e}: not the "
            "same method."
        )


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value
