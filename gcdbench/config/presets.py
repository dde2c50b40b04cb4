"""Presets: the values a method's recipe prescribes, per dataset and backbone, from TOML files of the plugin.

`presets/<recipe>.toml` in the package of the method (or `presets/<module>.<recipe>.toml`, where a package has several
methods in modules of their own) holds `[default]` and any number of `[dataset.NAME]` and `[dataset.NAME.on.BACKBONE]`
tables, and maybe a table `[feature-map]` for backbones with a feature map, which is laid over that of the dataset. Each
may have sub-tables named like config sections (`train`, `method`, ...) and a `source`: where the values were published,
or that they are ours.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from gcdbench.config.resolve import Layer, flatten
from gcdbench.errors import PluginError, unknown

FEATURE_MAP = "feature-map"


def recipe_name(method: str, recipes: tuple[str, ...], asked: str | None) -> str:
    """The recipe asked for, or the method's first one."""
    if asked is None:
        return recipes[0]
    if asked not in recipes:
        raise unknown(f"recipe of {method} called", asked, recipes)
    return asked


def preset_layers(
    method_class: type, recipe: str, dataset: str, backbone: str | None, feature_map: bool = False
) -> list[Layer]:
    """The recipe's layers from general to special; none if the plugin ships no preset file.

    ``backbone`` None leaves out the backbone tables (the backbone itself may come from a preset).
    """
    tree = read_preset(method_class, recipe)
    special = tree.get("dataset", {}).get(dataset, {})
    tables = [("default", tree.get("default", {})), (dataset, special)]
    if feature_map:
        tables.append((FEATURE_MAP, tree.get(FEATURE_MAP, {})))
    if backbone is not None:
        tables.append((f"{dataset} on {backbone}", special.get("on", {}).get(backbone, {})))
    return [_layer(recipe, name, table) for name, table in tables if table]


def read_preset(method_class: type, recipe: str) -> dict[str, Any]:
    """The preset file of a recipe as a tree: the method's own or, if its package has none, that of the method it is
    derived from; empty if there is none at all."""
    for cls in method_class.__mro__[:-1]:
        for file in preset_files(cls, (recipe,)):
            if file.is_file():
                where = f"The preset file {cls.__module__.partition('.')[0]}/presets/{file.name}"
                try:
                    tree = tomllib.loads(file.read_text(encoding="utf-8"))
                except (ValueError, RecursionError) as fault:
                    raise PluginError(f"{where} is not valid TOML: {fault}.") from fault
                _check_shape(tree, where)
                return tree
    return {}


def preset_files(method_class: type, recipes: Sequence[str]) -> list[Traversable]:
    """Where the presets of recipes are looked for in the package of a method."""
    package = method_class.__module__.partition(".")[0]
    if not hasattr(sys.modules[package], "__path__"):
        return []
    own = method_class.__module__.rpartition(".")[2]
    folder = resources.files(package) / "presets"
    return [folder / name for recipe in recipes for name in (f"{own}.{recipe}.toml", f"{recipe}.toml")]


def _check_shape(tree: Mapping[str, Any], where: str) -> None:
    """Tables where tables are expected, and no others: a name that is misspelt must not be passed over."""
    odd = [name for name in tree if name not in ("default", "dataset", FEATURE_MAP)]
    if odd:
        raise PluginError(
            f"{where} has a table '{odd[0]}'; there are [default], [dataset.NAME] and [{FEATURE_MAP}] only."
        )
    general = {name: tree.get(name, {}) for name in ("default", FEATURE_MAP)}
    for dataset, table in {**general, **_table(tree, "dataset", where)}.items():
        if not isinstance(table, Mapping):
            raise PluginError(f"{where}: '{dataset}' must be a table.")
        for backbone, own in _table(table, "on", where).items():
            if not isinstance(own, Mapping):
                raise PluginError(f"{where}: '{dataset}.on.{backbone}' must be a table.")


def _table(tree: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = tree.get(name, {})
    if not isinstance(found, Mapping):
        raise PluginError(f"{where}: '{name}' must hold tables.")
    return found


def _layer(recipe: str, name: str, table: Mapping[str, Any]) -> Layer:
    source = f"preset {recipe}/{name}" + (f" ({table['source']})" if "source" in table else "")
    return Layer(source, flatten({k: v for k, v in table.items() if k not in ("source", "on")}, source))
