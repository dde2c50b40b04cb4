"""Finds plugins through entry points. Listing imports nothing; loading imports one plugin and names its faults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gcdbench.errors import PluginError, UsageError, unknown

GROUPS = {
    "method": "gcdbench.methods",
    "dataset": "gcdbench.datasets",
    "evaluator": "gcdbench.evaluators",
    "k-estimator": "gcdbench.k_estimators",
    "tracker": "gcdbench.trackers",
}
"""Entry-point group of each kind of plugin."""

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
            return entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as fault:  # a plugin may raise anything, even SystemExit, while it is imported
            raise PluginError(
                f"The {self.kind} plugin '{self.name}' ({self.package} {self.version}) cannot be imported: "
                f"{type(fault).__name__}: {fault}"
            ) from fault


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


def probe(found: Sequence[Plugin]) -> dict[str, str | None]:
    """For each plugin the reason why it is broken, or None.

    The imports happen in a child process, so a plugin that prints, seeds or even kills its interpreter
    cannot disturb this one.
    """
    reasons: dict[str, str | None] = {p.name: p.clash for p in found}
    waiting = [p for p in found if not p.clash]
    while waiting:
        spec = json.dumps([[p.kind, p.name, p.target, p.package, p.version] for p in waiting])
        done = subprocess.run(
            [sys.executable, "-c", "from gcdbench.registry import _probe_child as c; c()"],
            input=spec,
            capture_output=True,
            text=True,
        )
        answers = [json.loads(line[len(_MARK) :]) for line in done.stdout.splitlines() if line.startswith(_MARK)]
        for name, reason in answers:
            reasons[name] = reason
        if len(answers) == len(waiting):
            break
        if len(answers) > len(waiting):
            raise UsageError("The plugin probe answered more often than asked.")
        died = waiting[len(answers)]
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        reasons[died.name] = f"its import ended the process (exit code {done.returncode}): {last[0]}"
        waiting = waiting[len(answers) + 1 :]
    return reasons


_MARK = "gcdbench-probe "


def _probe_child() -> None:
    """Child side of ``probe``: one marked line per plugin on the real standard output."""
    out = sys.stdout
    sys.stdout = sys.stderr
    for kind, name, target, package, version in json.loads(sys.stdin.read()):
        reason = None
        try:
            Plugin(kind, name, target, package, version, "").load()
        except PluginError as fault:
            reason = f"{type(fault.__cause__).__name__}: {fault.__cause__}"
        print(_MARK + json.dumps([name, reason]), file=out, flush=True)
