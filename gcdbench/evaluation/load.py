"""Which evaluators there are."""

from __future__ import annotations

from gcdbench import registry
from gcdbench.contracts import Evaluator
from gcdbench.errors import PluginError
from gcdbench.system.plugin_call import plugin_call


def load_evaluators() -> tuple[list[Evaluator], list[str]]:
    """Every evaluator that can be imported, and a sentence for each that cannot."""
    loaded: list[Evaluator] = []
    broken: list[str] = []
    for plugin in registry.plugins("evaluator"):
        try:
            with plugin_call(plugin.name, "__init__", kind="evaluator"):
                loaded.append(plugin.load()())
        except PluginError as fault:
            broken.append(str(fault))
    return loaded, broken
