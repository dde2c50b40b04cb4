"""What the kit is asked to check: a plugin by name, found among the kinds of plugins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcdbench import registry
from gcdbench.config.presets import recipe_name
from gcdbench.contracts import Dataset, Evaluator, KEstimator, Method
from gcdbench.errors import PluginError, UsageError, unknown
from gcdbench.testing.kit import Session, checks_of

KINDS: dict[str, type] = {
    "method": Method,
    "dataset": Dataset,
    "evaluator": Evaluator,
    "k-estimator": KEstimator,
}


@dataclass(frozen=True)
class Subject:
    """A plugin, imported."""

    plugin: registry.Plugin
    cls: type[Any]
    root: Path | None = None
    """Data root, for datasets."""
    recipe: str | None = None
    """Recipe, for methods; None takes the first."""

    @property
    def name(self) -> str:
        """Its registered name."""
        return self.plugin.name


def find_kind(name: str, kind: str | None) -> str:
    """The kind of plugin that a name belongs to; where several do, the first of method, dataset, evaluator, ..."""
    if kind is not None:
        if kind not in KINDS:
            raise unknown("kind of plugin called", kind, KINDS)
        return kind
    every: list[str] = []
    for each in KINDS:
        names = [p.name for p in registry.plugins(each)]
        every += names
        if name in names or name.lower() in (*names, *registry.aliases(each)):
            return each
    raise unknown("plugin called", name, set(every))


def open_session(
    name: str, kind: str | None = None, root: Path | None = None, recipe: str | None = None
) -> tuple[str, Session]:
    """The kind and the checks of a plugin."""
    kind = find_kind(name, kind)
    return kind, session_of(registry.get(kind, name), root, recipe)


def session_of(plugin: registry.Plugin, root: Path | None = None, recipe: str | None = None) -> Session:
    """The checks of a plugin that need not be installed."""
    cls: Any = plugin.load()
    base = KINDS[plugin.kind]
    sound = isinstance(cls, type) and issubclass(cls, base)
    if not sound:
        raise PluginError(f"The {plugin.kind} plugin '{plugin.name}' is no gcdbench.{base.__name__} but {cls!r}.")
    expected = getattr(cls, "expected_failures", {})
    if not isinstance(expected, Mapping):
        raise UsageError(f"expected_failures of '{plugin.name}' must map names of checks to reasons.")
    subject: Any = Subject(plugin, cls, root, recipe)
    if plugin.kind == "method":
        recipe_name(plugin.name, cls.recipes, recipe)
        from gcdbench.testing.lab import Lab

        subject = Lab(subject)
    return Session(subject, checks_of(plugin.kind), expected)
