"""`gcdbench`: finds the command, runs it, and turns errors into sentences and exit codes."""

from __future__ import annotations

import signal
import sys
from importlib import import_module

import click

from gcdbench import __version__
from gcdbench.cli.options import SuggestingGroup
from gcdbench.cli.output import plain
from gcdbench.errors import EXIT_CODES, GcdbenchError, Terminated
from gcdbench.system.interrupts import Interrupts
from gcdbench.system.parallel.exit_with_parent import end_with_parent
from gcdbench.system.parallel.spawn import other_rank

COMMANDS = {
    "run": ("run:run_command", "Train one or more methods on a dataset and score them."),
    "compare": ("compare:compare_command", "Compare methods on finished runs."),
    "table": ("table:table_command", "Make a table or study of a paper."),
    "sweep": (
        "sweep:sweep_command",
        "Make all runs of an experiment, on one machine or a cluster.",
    ),
    "job": ("job:job_command", "Make the runs of one job of a sweep; launchers call this."),
    "report": ("report:report_command", "Write an HTML report."),
    "results": ("results:results_command", "List all runs."),
    "list": ("listing:list_command", "List what is installed."),
    "show": ("show:show_command", "Show a run."),
    "data": ("data:data_group", "Datasets on disk: layout, check, download, split."),
    "cache": ("cache:cache_group", "Stores of images and tokens: list, delete."),
    "estimate-k": ("estimate_k:estimate_k_command", "Estimate how many classes a dataset has."),
    "verify": (
        "verify:verify_command",
        "Score the predictions of runs again and compare the record.",
    ),
    "score": ("score:score_command", "Score predictions of any code."),
    "new-plugin": ("new_plugin:new_plugin_command", "Write a plugin package to start from."),
    "check": ("check:check_command", "Check a plugin: the conformance kit."),
    "env": ("env:env_command", "Show versions, devices and folders, for a bug report."),
}
"""Module and function of each command in `cli/commands`, and what it is for; imported only when it is called."""


class LazyGroup(SuggestingGroup):
    """Imports a command when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order above."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the module of one command."""
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(import_module(f"gcdbench.cli.commands.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table above, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Installed plugins (none is imported) and exit codes."""
        from gcdbench import registry

        rows = [(f"{kind}s", ", ".join(p.name for p in registry.plugins(kind)) or "none") for kind in registry.GROUPS]
        with formatter.section("Installed"):
            formatter.write_dl(rows)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gcdbench")
def cli() -> None:
    """Benchmark harness for Generalized Category Discovery.

    Start with `gcdbench list methods` and `gcdbench run --method M --dataset digits`.
    """


def main(arguments: list[str] | None = None) -> None:
    """Entry point: every error a user can cause ends here as one sentence."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    end_with_parent()
    try:
        with Interrupts():
            code = cli.main(args=given, prog_name="gcdbench", standalone_mode=False, obj={"arguments": given})
    except GcdbenchError as fault:
        _say(str(fault))
        sys.exit(fault.exit_code)
    except click.ClickException as fault:
        fault.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt) as fault:
        reason = fault.__cause__ or fault  # click wraps every KeyboardInterrupt
        ended = isinstance(reason, Terminated) and reason.number != signal.SIGINT
        saved = " ".join(getattr(reason, "__notes__", ()))  # what runs say that have begun
        _say(f"{'Ended by a signal' if ended else 'Interrupted'}. {saved}".rstrip())
        sys.exit(reason.exit_code if isinstance(reason, Terminated) else 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except MemoryError:
        _say("Out of memory. Lower train.batch_size or eval.batch_size, or close other programs.")
        sys.exit(6)
    except OSError as fault:
        _say(f"{fault}." if fault.filename is None else f"{fault.filename}: {fault.strerror}.")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str) -> None:
    if other_rank():  # the first rank knows and says it
        return
    click.echo(f"Error: {plain(message)}", err=True)
