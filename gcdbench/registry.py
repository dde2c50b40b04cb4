"""Finds plugins through entry points. Listing imports nothing; loading imports one plugin and names its faults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gcdbench.errors import PluginError, UsageError, unknown
from gcdbench.system.debugging import look_at, raised_at

GROUPS = {
    "method": "gcdbench.methods",
    "dataset": "gcdbench.datasets",
    "evaluator": "gcdbench.evaluators",
    "k-estimator": "gcdbench.k_estimators",
    "tracker": "gcdbench.trackers",
    "launcher": "gcdbench.launchers",
}
"""Entry-point group of each kind of plugin."""

CLASSES = {
    "method": "Method",
    "dataset": "Dataset",
    "evaluator": "Evaluator",
    "k-estimator": "KEstimator",
    "tracker": "Tracker",
    "launcher": "Launcher",
}
"""What a plugin of each kind is derived from, in `gcdbench.contracts`."""

ALIASES = {"dataset": "gcdbench.dataset_aliases"}
"""Entry-point groups whose *value* is another plugin's name."""


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
"""What a plugin may be called: it becomes the name of a folder."""


@dataclass(frozen=True)
class Plugin:
    """One registered name: where it comes from, without having imported it."""

    kind: str
    name: str
    target: str
    """``module:attribute`` of the object."""
    package: str
    version: str
    summary: str
    clash: str | None = None
    """Why the name cannot be used: another installed package registers it too, or it is no name for a folder."""

    def load(self) -> Any:
        """Import the object; any fault of the plugin becomes a PluginError with its reason."""
        if self.clash:
            raise PluginError(self.clash)
        entry = EntryPoint(name=self.name, value=self.target, group=GROUPS[self.kind])
        try:
            found = entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as fault:  # a plugin may raise anything, even SystemExit, while it is imported
            look_at(fault)
            raise PluginError(
                f"The {self.kind} plugin '{self.name}' ({self.package} {self.version}) cannot be imported: "
                f"{type(fault).__name__}: {fault}{raised_at(fault)}"
            ) from fault
        self._check(found)
        return found

    def _check(self, found: Any) -> None:
        """What the harness relies on without a further look."""
        from gcdbench import contracts
        from gcdbench.config.sections import ViewConfig

        base = getattr(contracts, CLASSES[self.kind])
        who = f"The {self.kind} plugin '{self.name}' ({self.package} {self.version})"
        if not (isinstance(found, type) and issubclass(found, base)):
            raise PluginError(f"{who} is no gcdbench.{base.__name__} but {found!r}.")
        if self.kind == "method":
            recipes: Any = found.recipes  # type: ignore[attr-defined]
            if not (isinstance(recipes, tuple) and recipes and all(isinstance(r, str) and r for r in recipes)):
                raise PluginError(f"{who} must name its recipes in a tuple of texts, not {recipes!r}.")
        if self.kind == "dataset":
            views: Any = found.views  # type: ignore[attr-defined]
            if views is not None and not isinstance(views, ViewConfig):
                raise PluginError(f"{who} must give its views as a gcdbench.config.sections.ViewConfig, not {views!r}.")


def plugins(kind: str) -> list[Plugin]:
    """All registered plugins of a kind, sorted by name; imports none of them."""
    return list(_scan(kind).values())


@cache
def _scan(kind: str) -> dict[str, Plugin]:
    found: dict[str, Plugin] = {}
    for entry in sorted(entry_points(group=GROUPS[kind]), key=lambda e: (e.name, e.value)):
        meta: Any = entry.dist.metadata if entry.dist else {}
        new = Plugin(
            kind=kind,
            name=entry.name,
            target=entry.value,
            package=meta["Name"] if meta else "?",
            version=meta["Version"] if meta else "?",
            summary=(meta["Summary"] if meta and "Summary" in meta else "") or "",
        )
        if not NAME.fullmatch(entry.name):
            odd = (
                f"The {kind} plugin of {new.package} is called {entry.name!r}; folders are named after plugins, so a "
                "name is letters, digits, '-', '_', '.' and '+', and begins with a letter or digit."
            )
            new = Plugin(**{**new.__dict__, "clash": odd})
        old = found.get(entry.name)
        if old is None or (old.target == new.target and old.package == new.package):
            found[entry.name] = new
            continue
        clash = (
            f"The name '{entry.name}' is registered as a {kind} by both {old.package} ({old.target}) "
            f"and {new.package} ({new.target}). Uninstall one of them."
        )
        found[entry.name] = Plugin(**{**new.__dict__, "clash": clash})
    return found


def refresh() -> None:
    """Forget what was scanned (after an installation inside this process)."""
    _scan.cache_clear()


def aliases(kind: str) -> dict[str, str]:
    """Other names of plugins of this kind, mapped to the registered name."""
    if kind not in ALIASES:
        return {}
    return {entry.name: entry.value for entry in entry_points(group=ALIASES[kind])}


def canonical(kind: str, name: str) -> str:
    """The registered name for ``name`` (an alias or in another case), or a UsageError with the nearest one."""
    known = _scan(kind)
    if name in known:
        return name
    other = aliases(kind)
    key = name.lower()
    if other.get(key) in known:
        return other[key]
    if key in known:
        return key
    raise unknown(kind, name, [*known])


def get(kind: str, name: str) -> Plugin:
    """The plugin of that name or alias, not imported yet."""
    return _scan(kind)[canonical(kind, name)]


def load(kind: str, name: str) -> Any:
    """Import and return the plugin object of that name or alias."""
    return get(kind, name).load()


@dataclass(frozen=True)
class Probe:
    """What an import of a plugin has shown."""

    reason: str | None
    """Why it is broken."""
    facts: Mapping[str, Any]
    """What its class says of itself, for `gcdbench list`."""


def probe(found: Sequence[Plugin], root: str | None = None) -> dict[str, Probe]:
    """For each plugin whether it can be imported, and what it says of itself; of datasets also whether they are below
    the data root ``root``.

    The imports happen in a child process, so a plugin that prints, seeds or even kills its interpreter
    cannot disturb this one.
    """
    known = {p.name: Probe(p.clash, {}) for p in found}
    waiting = [p for p in found if not p.clash]
    while waiting:
        spec = json.dumps([root, [[p.kind, p.name, p.target, p.package, p.version] for p in waiting]])
        said, code, last = _in_child(spec)
        answers = [json.loads(line[len(_MARK) :]) for line in said.splitlines() if line.startswith(_MARK)]
        for name, reason, facts in answers:
            known[name] = Probe(reason, facts)
        if len(answers) == len(waiting):
            break
        if len(answers) > len(waiting):
            raise UsageError("The plugin probe answered more often than asked.")
        died = waiting[len(answers)]
        ended = f"its import ended the process (exit code {code}): {last}"
        slow = f"its import took longer than {PATIENCE} seconds"
        known[died.name] = Probe(slow if code is None else ended, {})
        waiting = waiting[len(answers) + 1 :]
    return known


def _in_child(spec: str) -> tuple[str, int | None, str]:
    """What the child printed, its exit code (None if it was stopped for taking too long) and its last words."""
    command = [sys.executable, "-c", "from gcdbench.registry import _probe_child as c; c()"]
    try:
        done = subprocess.run(command, input=spec, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired as fault:
        said = fault.stdout or b""
        return said.decode(errors="replace") if isinstance(said, bytes) else said, None, ""
    return done.stdout, done.returncode, (done.stderr.strip().splitlines() or ["no message"])[-1]


_MARK = "gcdbench-probe "
PATIENCE = 120.0
"""Seconds that the imports of plugins may take."""


def _probe_child() -> None:
    """Child side of ``probe``: one marked line per plugin on the real standard output."""
    out = sys.stdout
    sys.stdout = sys.stderr
    root, given = json.loads(sys.stdin.read())
    for kind, name, target, package, version in given:
        reason, facts = None, {}
        try:
            found = Plugin(kind, name, target, package, version, "").load()
            facts = {"method": _method_facts, "dataset": _dataset_facts}.get(kind, _facts)(found, root)
        except PluginError as fault:
            cause = fault.__cause__
            reason = str(fault) if cause is None else f"{type(cause).__name__}: {cause}{raised_at(cause)}"
        print(_MARK + json.dumps([name, reason, facts]), file=out, flush=True)


def _facts(found: Any, root: str | None) -> dict[str, Any]:
    """The first sentence of its documentation."""
    own = (found.__dict__.get("__doc__") or "").strip()
    return {"title": " ".join(own.split("\n\n")[0].split()).removesuffix(".")}


def _method_facts(found: Any, root: str | None) -> dict[str, Any]:
    from gcdbench.config.presets import read_preset

    def finds_k(recipe: str) -> bool:
        try:
            return bool(found.finds_k(found.Config(**read_preset(found, recipe).get("default", {}).get("method", {}))))
        except Exception:  # a preset that does not fit: `gcdbench check` says so
            return False

    return {
        **_facts(found, root),
        "recipes": list(found.recipes),
        "finds_k": [recipe for recipe in found.recipes if finds_k(recipe)],
        "needs_k": bool(found.traits.needs_k),
        "answers": "classifier" if found.traits.inductive else "clustering",
    }


def _dataset_facts(found: Any, root: str | None) -> dict[str, Any]:
    """Official counts, and whether its rows can be listed; no image is opened."""
    from pathlib import Path

    facts: dict[str, Any] = {"title": found.title, "train": None, "classes": None, "here": None}
    if found.expected is not None:
        facts |= {"train": found.expected.train, "classes": found.expected.classes}
    if root is not None:
        try:
            facts["here"] = len(found(Path(root)).index("train")) > 0
        except Exception:  # absent or damaged: `gcdbench data verify` says which
            facts["here"] = False
    return facts
