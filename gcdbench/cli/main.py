"""`gcdbench`: finds the command, runs it, and turns errors into sentences and exit codes."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from gcdbench import __version__
from gcdbench.cli.options import SuggestingGroup
from gcdbench.errors import EXIT_CODES, GcdbenchError

COMMANDS = {
    "run": "gcdbench.cli.run:run_command",
    "compare": "gcdbench.cli.compare:compare_command",
    "table": "gcdbench.cli.table:table_command",
    "report": "gcdbench.cli.report:report_command",
    "results": "gcdbench.cli.results:results_command",
    "list": "gcdbench.cli.listing:list_command",
    "show": "gcdbench.cli.show:show_command",
    "data": "gcdbench.cli.data:data_group",
    "score": "gcdbench.cli.score:score_command",
    "check": "gcdbench.cli.check:check_command",
    "bench": "gcdbench.cli.bench:bench_command",
    "env": "gcdbench.cli.env:env_command",
}
"""Where each command lives; imported only when it is called or its help is shown."""


class LazyGroup(SuggestingGroup):
    """Imports a command when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order above."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the module of one command."""
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

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
    try:
        code = cli.main(args=arguments, prog_name="gcdbench", standalone_mode=False)
    except GcdbenchError as fault:
        _say(str(fault))
        sys.exit(fault.exit_code)
    except click.ClickException as fault:
        fault.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        _say("Interrupted. A run keeps its finished epochs: the same command without --force goes on from there.")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as fault:
        _say(f"{fault}." if fault.filename is None else f"{fault.filename}: {fault.strerror}.")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str) -> None:
    click.echo(f"Error: {message}", err=True)
