"""Every preset of every installed method resolves, for every dataset and both backbones."""

from __future__ import annotations

import pytest

from gcdbench import registry
from gcdbench.config.presets import preset_layers, read_preset, recipe_name
from gcdbench.config.resolve import resolve
from gcdbench.errors import UsageError

SEVEN = ("cifar10", "cifar100", "imagenet100", "cub", "scars", "aircraft", "herbarium19")


@pytest.mark.parametrize("backbone", ["dino", "dinov2"])
@pytest.mark.parametrize("dataset", SEVEN)
@pytest.mark.parametrize(("method", "recipe"), [("rlcd", "paper"), ("rlcd", "released"), ("simgcd", "paper")])
def test_preset_resolves_and_names_its_source(method, recipe, dataset, backbone):
    cls = registry.load("method", method)
    layers = preset_layers(cls, recipe, dataset, backbone)
    resolve(method=method, dataset=dataset, recipe=recipe, seed=0, method_config=cls.Config, layers=layers)
    assert [dataset in layer.source for layer in layers] == [False, True] + [True] * (backbone == "dinov2")
    assert all("(" in layer.source for layer in layers)


def test_sections_of_presets_are_known_datasets():
    names = {p.name for p in registry.plugins("dataset")}
    for method in ("rlcd", "simgcd"):
        cls = registry.load("method", method)
        for recipe in cls.recipes:
            assert set(read_preset(cls, recipe)["dataset"]) <= names


def test_recipes():
    assert recipe_name("m", ("paper", "released"), None) == "paper"
    with pytest.raises(UsageError, match="Did you mean 'released'"):
        recipe_name("m", ("paper", "released"), "relased")
