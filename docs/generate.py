"""Writes the reference pages from the source (see `PAGES`), and the tables of what the paper costs.

python docs/generate.py          # write them
python docs/generate.py --check  # exit code 1 if one of them is not what it would write
python docs/generate.py --quick  # without the pages of costs, whose operations take some seconds to count
"""

from __future__ import annotations

import ast
import json
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
            kind = _kind(field)
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


def toolbox() -> str:
    """What method authors use: every public function and class of `gcdbench.toolbox`."""
    parts = [NOTICE, "# The toolbox\n"]
    parts.append(
        "`gcdbench.toolbox` is the public home of what methods share. Together with the names in `gcdbench` and "
        "`gcdbench.errors`\nit is all that the plugins in this repository import.\n"
    )
    for path in sorted((CONTRACTS.parent / "toolbox").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.stem == "__init__":
            continue
        parts.append(f"## `gcdbench.toolbox.{path.stem}`\n\n{_prose(ast.get_docstring(tree))}\n")
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                parts.append(f"- `{_signature(node)}`  \n  {_prose(ast.get_docstring(node), '  ')}")
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                init = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
                call = node.name if init is None else _signature(init).replace("__init__", node.name, 1)
                parts.append(f"- `{call.removesuffix(' -> None')}`  \n  {_prose(ast.get_docstring(node), '  ')}")
        parts.append("")
    return "\n".join(parts)


def config_keys() -> str:
    """Every key of the core's sections, with its type, default and meaning."""
    text = (CONTRACTS.parent / "config" / "sections.py").read_text(encoding="utf-8")
    parts = [NOTICE, "# Config keys\n"]
    parts.append(
        "Keys are set in a file, with `--set section.key=value`, or by options. Keys of a method are in its README; "
        "`--dry-run`\nlists every key with its value and where that came from.\n"
    )
    for node in ast.parse(text).body:
        if not isinstance(node, ast.ClassDef):
            continue
        section = node.name.removesuffix("Config").lower().replace("view", "views")
        parts.append(f"## `[{section}]`\n\n{_prose(ast.get_docstring(node))}\n")
        rows = ["| Key | Type | Default | |", "|---|---|---|---|"]
        for field, below in zip(node.body, [*node.body[1:], None], strict=True):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                default = "" if field.value is None else f"`{ast.unparse(field.value)}`"
                key, meaning = f"`{section}.{ast.unparse(field.target)}`", _cell(_prose(str(below.value.value)))
                rows.append(f"| {key} | `{_cell(_kind(field))}` | {default} | {meaning} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def record_json_schema() -> str:
    """The schema that `gcdbench results --schema` prints and records are checked against."""
    from record_schema import schema

    return json.dumps(schema(), indent=2) + "\n"


def record_page() -> str:
    """The fields of `record.json`."""
    from record_schema import schema

    whole = schema()
    parts = [NOTICE, "# The record\n", f"{whole['description']}\n"]
    parts.append("`gcdbench results --schema` prints the whole JSON Schema.\n\n| Field | Type | |\n|---|---|---|")
    for name, facts in whole["properties"].items():
        kind = facts.get("type", f"always {facts['const']}" if "const" in facts else "")
        kind = " or ".join(kind) if isinstance(kind, list) else kind
        parts.append(f"| `{name}` | {kind} | {_cell(facts.get('description', ''))} |")
    return "\n".join(parts) + "\n"


BEGIN, END = "<!-- Tables by `make docs`, from here -->\n", "<!-- to here -->"


def scale() -> str:
    """The page with the tables of what the whole paper costs as `gcdbench sweep paper --dry-run` counts it."""
    from gcdbench.analysis.experiment_file import load_experiment
    from gcdbench.analysis.table import markdown
    from gcdbench.experiments.cost import Assumptions, cost_of
    from gcdbench.experiments.cost_table import cost_sheets
    from gcdbench.experiments.study_runs import Asked
    from gcdbench.prepare.environment import RunEnvironment

    before, _, rest = (DOCS / COST).read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    experiment = load_experiment("paper")
    cost = cost_of(experiment, Asked(), RunEnvironment(), Assumptions())
    tables = "\n".join(markdown(sheet) for sheet in cost_sheets(cost))
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def methods() -> str:
    """The page that puts methods side by side, with what a step of each costs."""
    from gcdbench import registry
    from gcdbench.experiments.operation_counts import count_run
    from gcdbench.prepare.request import RunRequest

    before, _, rest = (DOCS / METHODS).read_text(encoding="utf-8").partition(BEGIN)
    lines = ["| Method (recipe) | Epochs | Trunk | Own part | Before each epoch |", "|---|---|---|---|---|"]
    for plugin in registry.plugins("method"):
        for recipe in plugin.load().recipes:
            found = count_run(RunRequest(plugin.name, "cub", recipe=recipe), DOCS)
            views = found.config.views.count
            own = [f"{stage.step / found.config.train.batch_size / 1e9:.2f}" for stage in found.stages if stage.epochs]
            pools = {f"{p.rows:,} {p.views} views" for stage in found.stages for p in stage.pools}
            once = {f"{p.rows:,} {p.views} views, once" for stage in found.stages for p in stage.first}
            pools |= set() if pools else once
            trunk = f"{views * found.trunk / 1e9:.1f}" if found.stages else "0"
            epochs = " + ".join(str(stage.epochs) for stage in found.stages if stage.epochs) or "none"
            name = f"{plugin.name} ({recipe})"
            lines.append(
                f"| {name} | {epochs} | {trunk} | {', '.join(own) or '0'} | {', '.join(sorted(pools)) or '–'} |"
            )
    note = "GFLOP for one image and step, forward and backward; several numbers are of several stages."
    table = "\n".join(lines)
    return f"{before}{BEGIN}\n{table}\n\n{note}\n\n{END}{rest.partition(END)[2]}"


COST = "explain/cost.md"
METHODS = "explain/methods.md"
PAGES = {
    "extend/contracts.md": contracts,
    "extend/checks.md": checks,
    "extend/toolbox.md": toolbox,
    "reference/commands.md": commands,
    "reference/config-keys.md": config_keys,
    "reference/record-schema.md": record_page,
    "../gcdbench/records/record.schema.json": record_json_schema,
    COST: scale,
    METHODS: methods,
}


def main() -> None:
    """Write the pages, or look whether they are up to date."""
    stale = []
    for name, make in PAGES.items():
        if name in (COST, METHODS) and "--quick" in sys.argv:
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
