"""What a user asks for, and how it becomes one resolved config per seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcdbench import registry
from gcdbench.backbone.catalogue import short_name
from gcdbench.backbone.load import has_feature_map, input_config
from gcdbench.config.method_ref import MethodRef
from gcdbench.config.presets import FEATURE_MAP, preset_layers, recipe_name
from gcdbench.config.resolve import Layer, Resolved, deviations, flatten, read_toml, resolve
from gcdbench.config.sections import BackboneConfig
from gcdbench.contracts import Dataset, Method
from gcdbench.errors import PluginError, UsageError, unknown


@dataclass(frozen=True)
class RunRequest:
    """The arguments of `gcdbench run`. None means: not said."""

    method: str | None = None
    dataset: str | None = None
    recipe: str | None = None
    seeds: tuple[int, ...] | None = None
    backbone: str | None = None
    epochs: int | None = None
    k: int | str | None = None
    """A number, or the name of a K estimator."""
    label_ratio: float | None = None
    novel_ratio: float | None = None
    precision: str | None = None
    compile: bool | None = None
    train_views: int | None = None
    store_tokens: str | None = None
    on_bad_image: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """`section.key` to value, as with --set."""
    config: Path | None = None
    study: Layer | None = None
    """What a row of an experiment file prescribes; below --set."""

    def each(self) -> list[RunRequest]:
        """One request per method: `A,B` or `A:RECIPE,A` names several."""
        named = _with_file(self)[0].method
        if named is None:
            return [self]
        found = []
        for name in named.split(","):
            if not name.strip():
                raise UsageError(f"--method {named} names a method without a name; write one name or several as A,B.")
            one = MethodRef.parse(name.strip())
            found.append(dataclasses.replace(self, method=one.method, recipe=one.recipe or self.recipe))
        return list({(one.method, one.recipe): one for one in found}.values())


@dataclass(frozen=True)
class ResolvedRequest:
    """What will run: the plugin classes and one resolved config per seed."""

    method: registry.Plugin
    method_class: type[Method]
    dataset_class: type[Dataset]
    runs: tuple[Resolved, ...]


DEFAULT_BACKBONE = BackboneConfig().name
_FLAGS = {
    "backbone": "backbone.name",
    "epochs": "train.epochs",
    "label_ratio": "data.label_ratio",
    "novel_ratio": "data.novel_ratio",
    "precision": "train.precision",
    "compile": "train.compile",
    "train_views": "store.train_views",
    "store_tokens": "store.eval_tokens",
    "on_bad_image": "data.on_bad_image",
}
_RUN_KEYS = ("method", "dataset", "recipe", "seeds")


def resolve_request(request: RunRequest) -> ResolvedRequest:
    """Load the two plugins asked for and resolve the config of every seed."""
    request, file_layer = _with_file(request)
    if request.method is None or request.dataset is None:
        absent = "--method" if request.method is None else "--dataset"
        raise UsageError(f"{absent} is missing: give it on the command line or in [run] of the config file.")
    dataset_class = registry.load("dataset", request.dataset)
    dataset = registry.canonical("dataset", request.dataset)
    return resolve_for(request, registry.get("method", request.method), dataset, dataset_class, file_layer)


def resolve_for(
    request: RunRequest,
    plugin: registry.Plugin,
    dataset: str,
    dataset_class: type[Dataset],
    file_layer: Layer | None = None,
) -> ResolvedRequest:
    """The plan for a method and a dataset that need not be installed."""
    file_layer = file_layer or Layer("config file", {})
    method_class = plugin.load()
    if not (isinstance(method_class, type) and issubclass(method_class, Method)):
        raise PluginError(f"The plugin '{plugin.name}' is not a gcdbench.Method but {method_class!r}.")
    recipe = recipe_name(plugin.name, method_class.recipes, request.recipe)
    flags = {key: getattr(request, flag) for flag, key in _FLAGS.items() if getattr(request, flag) is not None}
    flags |= _k_values(request.k)
    general = [
        dataset_layer(dataset_class),
        Layer(
            f"method {plugin.name}",
            {
                "backbone.train_from": method_class.traits.train_from,
                "views.count": method_class.traits.views,
                "train.sampler": method_class.traits.sampler,
            },
        ),
    ]
    study = [request.study] if request.study is not None else []
    chosen = [file_layer, *study, Layer("--set", dict(request.settings)), Layer("command line", flags)]

    def build(seed: int, backbone: str | None, over: Sequence[Layer] = chosen) -> Resolved:
        mapped = backbone is not None and has_feature_map(backbone)
        presets = preset_layers(method_class, recipe, dataset, backbone, mapped)
        notes = [layer.source for layer in presets]
        known = (None, DEFAULT_BACKBONE, dataset_class.backbone)
        own = (f" on {backbone}", f"/{FEATURE_MAP}")
        if backbone not in known and not any(name in note for note in notes for name in own):
            notes.append(f"ours: no settings for {backbone} were published; the dataset's are used as they are")
        middle = [] if backbone is None else backbone_layer(backbone, dataset_class)
        return resolve(
            method=plugin.name,
            dataset=dataset,
            recipe=recipe,
            seed=seed,
            method_config=method_class.Config,
            layers=[*general, *middle, *presets, *over],
            presets=notes if backbone is not None else (),
        )

    seeds = _seeds(request.seeds)
    backbone = short_name(build(seeds[0], None).config.backbone.name)
    prescribed = build(seeds[0], backbone, over=()).config
    runs = (build(seed, backbone) for seed in seeds)
    return ResolvedRequest(
        plugin,
        method_class,
        dataset_class,
        tuple(dataclasses.replace(run, chosen=deviations(run.config, prescribed)) for run in runs),
    )


def _k_values(k: int | str | None) -> dict[str, Any]:
    """A number or an estimator; either takes the place of what a file or preset says."""
    if k is None:
        return {}
    if isinstance(k, str):
        return {"data.k": None, "data.k_from": registry.canonical("k-estimator", k)}
    return {"data.k": k, "data.k_from": None}


def _seeds(asked: tuple[int, ...] | None) -> tuple[int, ...]:
    """Different seeds in the order given; a seed named twice would count as two runs."""
    if asked is None:
        return (0,)
    if not asked or not all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in asked):
        raise UsageError(f"Seeds must be whole numbers from 0 upwards like 0,1,2, not {list(asked)}.")
    return tuple(dict.fromkeys(asked))


def dataset_layer(dataset: type[Dataset]) -> Layer:
    """What a dataset says of its views and backbone."""
    values: dict[str, Any] = {}
    if dataset.views is not None:
        values = {f"views.{k}": v for k, v in dataclasses.asdict(dataset.views).items()}
    if dataset.backbone is not None:
        values["backbone.name"] = dataset.backbone
    return Layer(f"dataset {dataset.name}", values)


def backbone_layer(name: str, dataset: type[Dataset]) -> list[Layer]:
    """The views that a backbone's weights were trained with, where they are known.

    A dataset that asks for views of its own (tiny images) keeps their size.
    """
    values = input_config(name)
    if dataset.views is not None:
        values = {key: value for key, value in values.items() if key in ("views.mean", "views.std")}
    return [Layer(f"backbone {name}", values)] if values else []


def _with_file(request: RunRequest) -> tuple[RunRequest, Layer]:
    if request.config is None:
        return request, Layer("config file", {})
    source = f"config file {request.config}"
    tree = read_toml(request.config)
    run = tree.pop("run", {})
    if not isinstance(run, Mapping):
        raise UsageError(f"{source}: 'run' must be a section, [run].")
    for key in run:
        if key not in _RUN_KEYS:
            raise unknown(f"key in [run] of {request.config} called", key, _RUN_KEYS)
    changes: dict[str, Any] = {}
    for key in ("method", "dataset", "recipe"):
        if key in run and getattr(request, key) is None:
            value = run[key]
            if key == "method" and isinstance(value, list) and all(isinstance(name, str) for name in value):
                value = ",".join(value)
            if not isinstance(value, str):
                raise UsageError(f"{source}: run.{key} must be text, not {value!r}.")
            changes[key] = value
    if "seeds" in run and request.seeds is None:
        seeds = run["seeds"] if isinstance(run["seeds"], list) else [run["seeds"]]
        changes["seeds"] = tuple(seeds)
    return dataclasses.replace(request, **changes), Layer(source, flatten(tree, source))
