"""Writes the reference pages from the source: contracts.md, commands.md, checks.md, and the tables of scale.md.

python docs/generate.py          # write them
python docs/generate.py --check  # exit code 1 if one of them is not what it would write
python docs/generate.py --quick  # without scale.md, whose operations take some seconds to count
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import click

DOCS = Path(__file__).parent
CONTRACTS = DOCS.parent / "gcdbench" / "contracts.py"
NOTICE = "<!-- Written by `make docs` from the source; change it there. -->\n"


def contracts() -> str:
    """Everything in `gcdbench/contracts.py`, in its order."""
    text = CONTRACTS.read_text(encoding="utf-8")
    tree = ast.parse(text)
    intro = (ast.get_docstring(tree) or "").replace("``", "`")
    headings = {
        number: line.strip("# -\n") for number, line in enumerate(text.splitlines(), 1) if line.startswith("# ----")
    }
    parts = [NOTICE, "# The contracts\n", intro + "\n"]
    parts.append(
        "Everything here is in `gcdbench/contracts.py`; the most used names can be imported from `gcdbench`.\n"
    )
    for node in tree.body:
        for number in [n for n in headings if n < node.lineno]:
            parts.append(f"## {headings.pop(number).capitalize()}\n")
        if isinstance(node, ast.ClassDef):
            parts += _class(node)
    return "\n".join(parts)


def _class(node: ast.ClassDef) -> Iterator[str]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield f"### `{node.name}`{f' ({bases})' if bases else ''}\n"
    yield _prose(ast.get_docstring(node)) + "\n"
    rows = []
    for field, below in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            told = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            default = "" if field.value is None else f"`{ast.unparse(field.value)}`"
            kind = (
                ast.unparse(field.annotation).removeprefix("ClassVar[").removesuffix("]" * ("ClassVar" in _kind(field)))
            )
            rows.append(
                f"| `{ast.unparse(field.target)}` | `{_cell(kind)}` | {_cell(default)} | {_cell(_prose(told))} |"
            )
    if rows:
        yield "\n".join(["| Field | Type | Default | |", "|---|---|---|---|", *rows]) + "\n"
    for function in node.body:
        if isinstance(function, ast.FunctionDef) and (not function.name.startswith("_") or function.name == "__call__"):
            yield f"- `{_signature(function)}`  \n  {_prose(ast.get_docstring(function), '  ')}"
    yield ""


def _kind(field: ast.AnnAssign) -> str:
    """The type; that it is the class's and not the instance's goes without saying."""
    kind = ast.unparse(field.annotation)
    return kind[len("ClassVar[") : -1] if kind.startswith("ClassVar[") else kind


def _signature(function: ast.FunctionDef) -> str:
    arguments = ast.unparse(function.args).removeprefix("self, ").removeprefix("self").removeprefix("cls, ")
    returns = "" if function.returns is None else f" -> {ast.unparse(function.returns)}"
    marks = {ast.unparse(d) for d in function.decorator_list}
    if "property" in marks:
        return f"{function.name}: {ast.unparse(function.returns) if function.returns else ''}"
    needed = "required: " if "abc.abstractmethod" in marks else ""
    return f"{needed}{function.name}({arguments}){returns}"


def _prose(text: str | None, indent: str = "") -> str:
    lines = (text or "").replace("``", "`").strip().splitlines()
    return f"\n{indent}".join(line.strip() for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def commands() -> str:
    """The help of every command, as `--help` prints it."""
    from gcdbench.cli.main import COMMANDS, cli

    parts = [NOTICE, "# Commands\n", "`gcdbench COMMAND --help` prints the same.\n"]
    parts.append("| Command | What it does |\n|---|---|")
    parts[-1] += "".join(f"\n| [`{name}`](#gcdbench-{name}) | {said} |" for name, (_, said) in COMMANDS.items()) + "\n"
    names = ["-h", "--help"]
    root = click.Context(cli, info_name="gcdbench", terminal_width=100, max_content_width=100, help_option_names=names)
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None
        parts += _help(command, f"gcdbench {name}", root)
    return "\n".join(parts)


def _help(command: click.Command, path: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(
        command, info_name=path.rpartition(" ")[2], parent=parent, terminal_width=100, max_content_width=100
    )
    yield f"## {path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name, sub in sorted(command.commands.items()):
            yield from _help(sub, f"{path} {name}", context)


def checks() -> str:
    """Every check of the conformance kit."""
    from gcdbench.testing.kit import CHECKS, checks_of

    parts = [NOTICE, "# The checks of the conformance kit\n"]
    parts.append("`gcdbench check NAME` runs them; `gcdbench.testing.parametrize_checks(NAME)` gives them to pytest.\n")
    for kind in CHECKS:
        parts.append(f"## Of {kind}s\n\n| Check | What must hold | What helps if it does not |\n|---|---|---|")
        parts[-1] += "".join(
            f"\n| `{c.name}` | {_cell(c.explains)} | {_cell(c.fix)} |" for c in checks_of(kind).values()
        )
        parts[-1] += "\n"
    return "\n".join(parts)


BEGIN, END = "<!-- Tables by `make docs`, from here -->\n", "<!-- to here -->"


def scale() -> str:
    """The page with the tables of what the whole paper costs as `gcdbench sweep paper --dry-run` counts it."""
    from gcdbench.analysis.experiment_file import load_experiment
    from gcdbench.analysis.table import markdown
    from gcdbench.experiments.cost import Assumptions, cost_of
    from gcdbench.experiments.cost_table import cost_sheets
    from gcdbench.experiments.study_runs import Asked
    from gcdbench.prepare.environment import RunEnvironment

    before, _, rest = (DOCS / "scale.md").read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    experiment = load_experiment("paper")
    cost = cost_of(experiment, Asked(), RunEnvironment(), Assumptions())
    tables = "\n".join(markdown(sheet) for sheet in cost_sheets(cost))
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


PAGES = {"contracts.md": contracts, "commands.md": commands, "checks.md": checks, "scale.md": scale}


def main() -> None:
    """Write the pages, or look whether they are up to date."""
    stale = []
    for name, make in PAGES.items():
        if name == "scale.md" and "--quick" in sys.argv:
            continue
        text, path = make(), DOCS / name
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        sys.exit(f"{', '.join(stale)} in docs/ differ from the source; `make docs` writes them again.")


if __name__ == "__main__":
    main()
