"""Checks of what a plugin ships: a quiet import, settings, presets and published numbers."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from gcdbench import registry
from gcdbench.analysis.published import read_tables
from gcdbench.config.presets import preset_files, preset_layers, read_preset
from gcdbench.config.resolve import Layer, resolve
from gcdbench.errors import GcdbenchError
from gcdbench.records.provenance import package_folder
from gcdbench.registry import PATIENCE
from gcdbench.testing.kit import CHECKS, Failed, NotApplicable, check

IMPORT_QUIET: dict[str, Any] = {
    "explains": "Importing the plugin prints nothing, writes nothing, opens no connection, starts no CUDA, draws no "
    "random number and turns no global switch: `gcdbench list` imports every plugin.",
    "fix": "Move whatever happens at import into __init__ or a function.",
}


def import_quiet(subject: Any) -> None:
    """Import the plugin's module in a process of its own that watches it."""
    plugin = getattr(subject, "subject", subject).plugin
    faults = _noise(plugin.target.partition(":")[0])
    if faults:
        raise Failed(f"importing {plugin.target.partition(':')[0]} {'; '.join(faults)}")


for _kind in CHECKS:
    check(_kind, "import-quiet", **IMPORT_QUIET)(import_quiet)


def named_and_versioned(subject: Any) -> None:
    """Facts on the class."""
    name, version = getattr(subject.cls, "name", None), getattr(subject.cls, "version", None)
    if name != subject.name:
        raise Failed(f"it is registered as '{subject.name}' but calls itself '{name}'")
    if not isinstance(version, int) or isinstance(version, bool):
        raise Failed("version is no whole number")


for _kind in ("evaluator", "k-estimator"):
    check(
        _kind,
        "describes-itself",
        explains="name is the registered one and version a whole number; both are part of what identifies a result.",
        fix="Set name and version on the class.",
    )(named_and_versioned)


@cache
def _noise(module: str) -> tuple[str, ...]:
    """What a module does when it is imported and should not."""
    with tempfile.TemporaryDirectory(prefix="gcdbench-import-") as empty:
        done = subprocess.run(
            [sys.executable, "-c", "from gcdbench.testing.quiet import watch; watch()", module, *map(str, sys.path)],
            capture_output=True,
            text=True,
            cwd=empty,
            timeout=PATIENCE,
        )
        left = sorted(path.name for path in Path(empty).iterdir())
    answers = [line for line in done.stdout.splitlines() if line.startswith("gcdbench-quiet ")]
    if not answers:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return (f"ends the process (exit code {done.returncode}): {last}",)
    faults = json.loads(answers[-1].partition(" ")[2])
    return (*faults, *([f"leaves {', '.join(left)} in the current folder"] if left else []))


@check(
    "method",
    "config",
    explains="Config is a frozen dataclass whose fields all have a default and a docstring below them, and"
    " survives being written to config.json and read again: the run id is a hash of it.",
    fix="Write @dataclass(frozen=True) class Config with plain types (int, float, bool, str, Literal,"
    " tuples), a default and a docstring for each field.",
)
def config_round_trips(lab: Any) -> None:
    """Frozen, documented, and the same after JSON."""
    config = getattr(lab.cls, "Config", None)
    if not (isinstance(config, type) and dataclasses.is_dataclass(config)):
        raise Failed("Config is no dataclass")
    if not config.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise Failed("Config is not frozen")
    for f in dataclasses.fields(config):
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise Failed(f"Config.{f.name} has no default")
    absent = sorted({f.name for f in dataclasses.fields(config)} - _documented(config))
    if absent:
        raise Failed(f"Config.{absent[0]} has no docstring below it")
    made = config()
    read = json.loads(json.dumps(dataclasses.asdict(made)))
    again = _resolved(lab, [Layer("config.json", {f"method.{k}": v for k, v in read.items()})])
    if again != made:
        raise Failed("Config is not the same after it was written to JSON and read again")


def _documented(config: type) -> set[str]:
    """Fields with a docstring below them, in the class or in one that it inherits from."""
    found: set[str] = set()
    for cls in config.__mro__:
        if not dataclasses.is_dataclass(cls):
            continue
        try:
            tree = ast.parse(inspect.cleandoc(inspect.getsource(cls)))
        except (OSError, TypeError, SyntaxError):  # made by code: no one can read its source, so no one can miss it
            found.update(f.name for f in dataclasses.fields(cls))
            continue
        body = tree.body[0].body  # type: ignore[attr-defined]
        for field, below in pairwise(body):
            documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and documented and isinstance(field.target, ast.Name):
                found.add(field.target.id)
    return found


def _resolved(lab: Any, layers: list[Layer]) -> Any:
    subject = lab.subject
    found = resolve(
        method=subject.name, dataset="digits", recipe="", seed=0, method_config=lab.cls.Config, layers=layers
    )
    return found.config.method_config


def _recipes(names: Sequence[str]) -> str:
    return f"is the recipe {names[0]} only" if len(names) == 1 else f"are the recipes {', '.join(names)}"


def _unmatched_presets(lab: Any) -> list[str]:
    """Preset files of the package that no method of it reads."""
    target = lab.subject.plugin.target
    folder = package_folder(target)
    if folder is None or not (folder / "presets").is_dir():
        return []
    package = target.partition(":")[0].partition(".")[0]
    siblings = [p for p in registry.plugins("method") if p.target.partition(":")[0].partition(".")[0] == package]
    classes = [lab.cls, *(p.load() for p in siblings if not p.clash)]
    read = {file.name for cls in classes for file in preset_files(cls, cls.recipes)}
    return sorted(path.name for path in (folder / "presets").glob("*.toml") if path.name not in read)


@check(
    "method",
    "presets",
    explains="Every preset file belongs to a recipe. Every preset of every recipe resolves, for each dataset and "
    "backbone it names, and says where it was published; tables of published numbers can be read.",
    fix="Name preset files after recipes (`recipes` of the method), correct the key or value in them, add a `source`, "
    "or correct paper/*.toml (gcdbench/analysis/published.py says what is in such a file).",
    needs=("config",),
)
def presets_resolve(lab: Any) -> None:
    """All presets and paper tables of the package."""
    seen = 0
    for name in _unmatched_presets(lab):
        raise Failed(f"presets/{name} belongs to no recipe; there {_recipes(lab.cls.recipes)}")
    for recipe in lab.cls.recipes:
        tree = read_preset(lab.cls, recipe)
        seen += bool(tree)
        tables = tree.get("dataset", {})
        for dataset in [*tables, "a dataset without a preset"]:
            for backbone in (None, *tables.get(dataset, {}).get("on", {})):
                layers = preset_layers(lab.cls, recipe, dataset, backbone)
                _resolved(lab, layers)
                silent = [layer.source for layer in layers if "(" not in layer.source]
                if silent:
                    raise Failed(f"{silent[0]} does not say where its values come from (source = ...)")
    folder = package_folder(lab.subject.plugin.target)
    paper = None if folder is None else folder / "paper"
    if paper is not None and paper.is_dir():
        try:
            read_tables(paper)
        except GcdbenchError as fault:
            raise Failed(str(fault)) from fault
        seen += 1
    if not seen:
        raise NotApplicable("the plugin ships neither presets nor published numbers")
