"""`gcdbench sweep`."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from gcdbench.cli import completion
from gcdbench.cli.commands.table import asked_for, show_studies
from gcdbench.cli.environment_options import take_environment, where_options
from gcdbench.cli.formats import format_options
from gcdbench.cli.options import Finite, Seeds, datasets_option, set_option
from gcdbench.cli.output import err, print_json
from gcdbench.errors import GcdbenchError, UsageError

if TYPE_CHECKING:
    from gcdbench.analysis.experiment_file import Experiment
    from gcdbench.contracts import Launcher, Resources
    from gcdbench.experiments.monitor import Followed
    from gcdbench.experiments.study_runs import Asked
    from gcdbench.experiments.sweep_plan import SweepPlan
    from gcdbench.prepare.environment import RunEnvironment

RESOURCES = {"gpus_per_job": "gpus", "cpus_per_job": "cpus", "memory_per_job": "memory_gb", "minutes": "minutes"}
"""Options and what they set."""


@click.command("sweep", short_help="Make all runs of an experiment, on one machine or a cluster.")
@click.argument("name", shell_complete=completion.experiments)
@click.option("--launcher", default="local", show_default=True, help="Where jobs run, see `gcdbench list launchers`.")
@click.option(
    "--launcher-set", "launcher_settings", multiple=True, metavar="KEY=VALUE", help="A setting of the launcher."
)
@click.option("--gpus-per-job", type=Finite(0), help="GPUs of each job; a fraction lets jobs share one.")
@click.option("--cpus-per-job", type=click.IntRange(1), help="Cores of each job.")
@click.option("--memory-per-job", type=Finite(0, min_open=True), metavar="GB", help="Memory of each job.")
@click.option("--minutes", type=click.IntRange(1), help="Time limit of each job; it is saved and queued again.")
@click.option("--retries", type=click.IntRange(0), default=3, show_default=True, help="Of a job that was taken away.")
@click.option("--retry-failed", is_flag=True, help="Also try runs again that have failed.")
@datasets_option
@click.option("--backbone", help="Backbone; default is the experiment's or the dataset's.")
@click.option("--seed", "seeds", type=Seeds(), help="Seeds: 0 or 0,1,2 or 0-4 (default: the experiment's).")
@click.option("--epochs", type=int, help="Number of epochs of every run.")
@set_option
@where_options
@click.option("--dry-run", is_flag=True, help="Print what there is to make and what it costs, then stop.")
@click.option("--tflops", type=Finite(0, min_open=True), help="Sustained speed of a GPU, for --dry-run.")
@format_options("markdown", "latex", "json", "csv")
def sweep_command(
    name: str,
    launcher: str,
    launcher_settings: tuple[str, ...],
    retry_failed: bool,
    dry_run: bool,
    fmt: str | None,
    **options: Any,
) -> None:
    """Make all runs of an experiment: NAME is one of `gcdbench list experiments`, or a TOML file.

    Runs that share trunk passes become one job. Finished runs are skipped, unfinished ones continue, failed ones are
    listed (and tried again with --retry-failed). The plan comes first, the table of the experiment last. The same
    command again continues with whatever is left.
    """
    from gcdbench.analysis.experiment_file import load_experiment
    from gcdbench.contracts import Resources

    retries, tflops = options.pop("retries"), options.pop("tflops")
    given = {field: options.pop(option) for option, field in RESOURCES.items()}
    experiment = load_experiment(name)
    if experiment.kind != "runs":
        raise UsageError(f"The experiment '{experiment.name}' trains nothing: `gcdbench table` makes it.")
    chosen = _launcher(launcher, launcher_settings)
    if dry_run:
        _dry_run(experiment, options, tflops, fmt, retry_failed)
        return
    resources = Resources(**given)
    if resources.gpus and options["device"] == "cpu":
        raise UsageError(f"--gpus-per-job is {resources.gpus:g}, but runs are to be made on the CPU.")
    environment, asked = take_environment(options), asked_for(**options)
    plan, jobs = _sweep(experiment, asked, environment, chosen, resources, retries, retry_failed)
    _show(experiment, asked, environment, fmt)
    _verdict(plan, jobs)


def _launcher(name: str, settings: tuple[str, ...]) -> tuple[type[Launcher], Any]:
    """The launcher's class and its settings."""
    from typing import get_type_hints

    from gcdbench import registry
    from gcdbench.config.coercion import coerce, parse_value
    from gcdbench.errors import unknown

    kind: type[Launcher] = registry.load("launcher", name)
    hints = get_type_hints(kind.Config)
    known = [field.name for field in dataclasses.fields(kind.Config)]
    values = {}
    for text in settings:
        key, sign, raw = (part.strip() for part in text.partition("="))
        if not sign:
            raise UsageError(f"--launcher-set takes key=value, not '{text}'.")
        if key not in known:
            raise unknown(f"setting of the launcher '{name}' called", key, known)
        values[key] = coerce(parse_value(raw), hints[key], key, "--launcher-set")
    return kind, kind.Config(**values)


def _sweep(
    experiment: Experiment,
    asked: Asked,
    environment: RunEnvironment,
    chosen: tuple[type[Launcher], Any],
    resources: Resources,
    retries: int,
    retry_failed: bool,
) -> tuple[SweepPlan, list[Followed]]:
    """Plan, show the plan, run and follow."""
    from gcdbench.cli.sweep_output import JobTable, print_plan
    from gcdbench.experiments.job_file import JobEnvironment
    from gcdbench.experiments.monitor import follow, sole, write_jobs
    from gcdbench.experiments.sweep_plan import sweep_folder
    from gcdbench.system.plugin_call import plugin_call

    runs = environment.runs.absolute()
    environment = dataclasses.replace(environment, runs=runs, root=environment.root.absolute())
    folder = sweep_folder(experiment, runs)
    with sole(folder, lambda text: err().print(text, markup=False)):
        planned = _planned(experiment, asked, environment, retry_failed)
        if not planned.jobs:
            print_plan(planned, None)
            return planned, []
        with plugin_call(chosen[0].name, "__init__", kind="launcher"):
            launcher = chosen[0](chosen[1], resources, environment.device, folder)
        print_plan(planned, launcher.resources)
        # What a launcher's library prints (Ray does, of workers that died) is not the answer.
        with JobTable(err()) as table, redirect_stdout(sys.stderr):
            jobs = write_jobs(
                planned.jobs, JobEnvironment.of(environment, max(1, int(launcher.resources.gpus or 0))), folder
            )
            follow(jobs, launcher, table.show, retries)
    return planned, jobs


def _planned(experiment: Experiment, asked: Asked, environment: RunEnvironment, retry_failed: bool) -> SweepPlan:
    """What there is to make. Data and weights are only looked at: what jobs compute on is their machines' business."""
    from gcdbench.cli.progress import Display
    from gcdbench.experiments.sweep_plan import plan_sweep

    with Display() as display:
        return plan_sweep(experiment, asked, dataclasses.replace(environment, device="cpu"), display, retry_failed)


def _show(experiment: Experiment, asked: Asked, environment: RunEnvironment, fmt: str | None) -> None:
    """The table of the experiment from what is there now."""
    from gcdbench.experiments.study_runs import make_studies
    from gcdbench.system.observer import Observer

    # Nothing is computed here, whatever the runs are made on.
    here = dataclasses.replace(environment, device="cpu")
    studies, _ = make_studies(experiment, asked, here, Observer(), train=False)
    show_studies(studies, fmt)


def _verdict(plan: SweepPlan, jobs: list[Followed]) -> None:
    """What is missing, and why."""
    from gcdbench.experiments.monitor import last_words

    lines = [f"  {what}: {fault}" for what, fault in plan.cannot.items()]
    by_run = {run.run_id: one for one in jobs for run in one.job.runs}
    for run in plan.runs:
        if run.folder.finished:
            continue
        one, reason = by_run.get(run.run_id), run.folder.failure
        if reason is None and one is None and run.folder.worker is not None:
            reason = f"{run.folder.worker} works on it"
        elif reason is None and one is not None:
            how = "was taken away each time" if one.given_up else f"ended with code {one.state.code}"
            said = one.state.reason or last_words(one.launch.log)
            reason = f"its job {how} ({said}); see {one.launch.log}"
        lines.append(f"  {run.label} on {run.dataset}, {run.backbone}, seed {run.seed}: {reason}")
    if lines:
        again = " Failed runs are tried again with --retry-failed." if any(r.folder.failure for r in plan.runs) else ""
        raise GcdbenchError(
            f"{len(lines)} of {len(plan.runs) + len(plan.cannot)} rows or runs are not finished.{again}\n"
            + "\n".join(lines)
        )


def _dry_run(
    experiment: Experiment, options: dict[str, Any], tflops: float | None, fmt: str | None, retry_failed: bool
) -> None:
    """What there is to make, where data and weights are at hand; and what all runs cost, which needs neither."""
    from gcdbench.cli.sweep_output import print_cost, print_plan
    from gcdbench.experiments.cost import Assumptions, cost_of

    if fmt not in (None, "json", "markdown"):
        raise UsageError(f"--dry-run prints for a person, as --markdown or as --json, not as --{fmt}.")
    environment, asked = take_environment(options), asked_for(**options)
    if fmt is None:
        print_plan(_planned(experiment, asked, environment, retry_failed), None)
    assumed = Assumptions() if tflops is None else Assumptions(tflops=tflops)
    with err().status("counting operations"):
        cost = cost_of(experiment, asked, environment, assumed)
    if fmt == "json":
        print_json(cost.as_dict())
    else:
        print_cost(cost, as_markdown=fmt == "markdown")
