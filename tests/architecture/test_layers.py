"""Imports point one way, folders stay small, and plugins use what is public."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAYERS = (
    *("errors", "system", "config", "contracts", "registry", "toolbox", "data", "backbone", "evaluation", "records"),
    *("analysis", "prepare", "training", "runs", "experiments", "report", "testing", "cli", "__main__"),
)
"""From low to high: a module imports from its own room or from one further up in this list."""
EXCEPTIONS = {("gcdbench.contracts", "gcdbench.toolbox.optim")}
"""`Method.optimizers` has a default, which is asked for when it is used."""
PUBLIC = ("gcdbench", "gcdbench.toolbox", "gcdbench.errors")
ROOMS, FILES, LINES = 15, 12, 300
LARGE = ("gcdbench/contracts.py",)
CROWDED = ("gcdbench/data/datasets", "gcdbench/cli/commands")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Modules of ours that a file imports, lazily or for types only included; `gcdbench.x` stands for what is in it."""
    text = re.sub(r"\$(\{\w+\}|\w+)", "X", path.read_text())  # templates of plugins
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.split(".")[0] == "gcdbench")
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield f"a relative module ({'.' * node.level}{node.module or ''})", node.lineno
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gcdbench":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (ROOT / inner.replace(".", "/")).with_suffix(".py").is_file()
                is_package = (ROOT / inner.replace(".", "/") / "__init__.py").is_file()
                yield (inner if is_module or is_package else str(node.module)), node.lineno


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def rank(module: str) -> int:
    return LAYERS.index(module.split(".")[1])


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_imports_point_one_way():
    used, wrong = set(), []
    for path in files("gcdbench"):
        importer = module_of(path)
        if importer == "gcdbench":  # the public names, loaded when they are first used
            continue
        for target, line in imports(path):
            if target == "gcdbench" or rank(target) <= rank(importer):
                continue
            used.add((importer, target))
            if (importer, target) not in EXCEPTIONS:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {target}")
    assert not wrong, "\n".join(wrong)
    assert used == EXCEPTIONS, "an exception that nothing needs any more"


def test_every_room_is_in_the_list():
    there = {path.name.removesuffix(".py") for path in (ROOT / "gcdbench").iterdir() if path.suffix == ".py"}
    there |= {path.parent.relative_to(ROOT / "gcdbench").parts[0] for path in (ROOT / "gcdbench").glob("*/*.py")}
    assert there - {"__init__"} == set(LAYERS)


def test_plugins_import_what_is_public():
    wrong = []
    templates = sorted((ROOT / "gcdbench/testing/scaffold").glob("*/package/*.py.txt"))
    for path in [*sorted((ROOT / "plugins").glob("*/gcdbench_*/**/*.py")), *templates]:
        for target, line in imports(path):
            if target not in PUBLIC and target != "X" and not target.startswith("gcdbench.toolbox."):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_rooms_are_few_and_small():
    rooms = {path.parent for path in (ROOT / "gcdbench").rglob("*.py")} - {ROOT / "gcdbench"}
    assert len({room.relative_to(ROOT / "gcdbench").parts[0] for room in rooms}) <= ROOMS
    for room in rooms:
        count = len([path for path in room.glob("*.py") if path.name != "__init__.py"])
        if room.relative_to(ROOT).as_posix() not in CROWDED:
            assert count <= FILES, room
        assert count >= 1, room


def test_files_are_short():
    for folder in ("gcdbench", "plugins", "benchmarks"):
        for path in files(folder):
            name = path.relative_to(ROOT).as_posix()
            if "/tests/" not in name and "/build/" not in name and name not in LARGE:
                assert len(path.read_text().splitlines()) <= LINES, name
