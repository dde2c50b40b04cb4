"""What a run is made of: frozen dataclasses, filled from defaults, presets, a TOML file and ``--set``.

Later layers win; every value remembers which layer it came from. Nothing is guessed: an unknown key or a
value of the wrong type is an error that names the nearest valid one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from gcdbench.config.coercion import coerce
from gcdbench.config.sections import BackboneConfig, DataConfig, EvalConfig, StoreConfig, TrainConfig, ViewConfig
from gcdbench.errors import GcdbenchError, PluginError, UsageError, nearest
from gcdbench.system.files import not_a_file


@dataclass(frozen=True)
class RunConfig:
    """One run, completely resolved. `method_config` is the plugin's own frozen dataclass."""

    method: str
    dataset: str
    recipe: str
    seed: int
    data: DataConfig
    views: ViewConfig
    backbone: BackboneConfig
    train: TrainConfig
    eval: EvalConfig
    store: StoreConfig
    method_config: Any

    @property
    def stream_seed(self) -> int:
        """Seed of batches and views."""
        return self.seed if self.train.stream is None else self.train.stream

    def approximations(self) -> dict[str, Any]:
        """What is not the backbone's own tokens of fresh views because the user chose so; part of the protocol."""
        found: dict[str, Any] = {}
        if self.store.eval_tokens in ("bf16", "fp16"):
            found["eval_tokens"] = self.store.eval_tokens
        if self.store.train_views:
            found["train_views"] = self.store.train_views
            found["train_tokens"] = self.store.train_tokens
        if self.backbone.pca is not None:
            found["pca"] = self.backbone.pca
            found["pca_images"] = self.backbone.pca_images
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain nested data, as it is written to `config.json`."""
        sections = {name: dataclasses.asdict(getattr(self, name)) for name in SECTIONS}
        return {
            "run": {
                "method": self.method,
                "dataset": self.dataset,
                "recipe": self.recipe,
                "seed": self.seed,
            },
            **sections,
            "method": dataclasses.asdict(self.method_config),
        }


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "views": ViewConfig,
    "backbone": BackboneConfig,
    "train": TrainConfig,
    "eval": EvalConfig,
    "store": StoreConfig,
}
"""Sections of the core; the plugin's section is `method`."""

NOT_IN_IDENTITY = ("train.micro_batch", "eval.batch_size", "backbone.weights", "data.on_bad_image")
"""Keys that do not decide what a run is: two change memory use only; weights count by hash, not by path; rows that are
left out count by the hash of the index."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "data.images": (None,),
    "data.k_from": (None,),
    "backbone.pca": (None,),
    "backbone.pca_images": (10_000,),
    "backbone.tail_depth": (1,),
    "backbone.tail_heads": (4,),
    "backbone.tail_width": (None,),
    "backbone.tail_norm": ("own",),
    "backbone.tail_read": ("plain",),
    "views.kinds": ((), []),
    "train.stream": (None,),
    "train.compile": (False,),
    "train.sampler": ("balanced",),
    "store.eval_tokens": ("auto", "fp32"),
    "store.train_views": (0,),
}
"""Values that change no result, so that a run is the same with them and without the key."""


@dataclass(frozen=True)
class Layer:
    """Some values with a common origin, keyed `section.key`."""

    source: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Resolved:
    """A run's configuration and where each value came from."""

    config: RunConfig
    sources: Mapping[str, str] = field(default_factory=dict)
    presets: tuple[str, ...] = ()
    """Presets that were laid over the defaults, with where they were published."""
    chosen: tuple[str, ...] = ()
    """Keys whose value is not what the recipe prescribes for this dataset and backbone."""


def resolve(
    *,
    method: str,
    dataset: str,
    recipe: str,
    seed: int,
    method_config: type,
    layers: Iterable[Layer],
    presets: Iterable[str] = (),
) -> Resolved:
    """Lay the layers over the dataclass defaults, strictly."""
    classes = {**SECTIONS, "method": method_config}
    known = {f"{section}.{f.name}" for section, cls in classes.items() for f in dataclasses.fields(cls)}
    types_of = {section: get_type_hints(cls) for section, cls in classes.items()}
    values: dict[str, dict[str, Any]] = {section: {} for section in classes}
    sources = dict.fromkeys(sorted(known), "default")
    for layer in layers:
        for key, value in layer.values.items():
            if key not in known:
                raise _unknown_key(key, known, layer.source)
            section, name = key.split(".", 1)
            values[section][name] = coerce(value, types_of[section][name], key, layer.source)
            sources[key] = layer.source
    built = {section: cls(**values[section]) for section, cls in SECTIONS.items()}
    built["method"] = _plugin_config(method, method_config, values["method"])
    plugin = built.pop("method")
    config = RunConfig(method=method, dataset=dataset, recipe=recipe, seed=seed, method_config=plugin, **built)
    return Resolved(config, sources, tuple(presets))


def _plugin_config(method: str, config: type, values: Mapping[str, Any]) -> Any:
    """The plugin's own settings; a ValueError is how it refuses one."""
    try:
        return config(**values)
    except GcdbenchError:
        raise
    except ValueError as fault:
        raise UsageError(f"The method '{method}' refuses its settings: {fault}") from fault
    except Exception as fault:
        raise PluginError(f"The method '{method}' failed in Config: {type(fault).__name__}: {fault}") from fault


def flat_config(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A config as written to `config.json`, as `section.key` to value; without [run] and what is no setting."""
    sections = {name: values for name, values in tree.items() if name in SECTIONS or name == "method"}
    return {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}


def decisive(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Of a config as `section.key` to value, what decides the result."""
    kept = {k: v for k, v in flat.items() if k not in NOT_IN_IDENTITY and v not in NEUTRAL.get(k, ())}
    if "store.train_views" not in kept:
        kept.pop("store.train_tokens", None)
    if "backbone.pca" not in kept:
        kept.pop("backbone.pca_images", None)
    return kept


def deviations(config: RunConfig, prescribed: RunConfig) -> tuple[str, ...]:
    """Keys that decide the result and whose value is not the prescribed one. Another backbone is no deviation."""
    ours, theirs = (decisive(flat_config(c.as_dict())) for c in (config, prescribed))
    differing = (key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key))
    return tuple(key for key in differing if key != "backbone.name")


def run_id(config: RunConfig, **facts: str) -> str:
    """Twelve hex digits over everything that decides the result (config, data index, weights)."""
    tree: dict[str, Any] = {"run": config.as_dict()["run"]}
    for key, value in decisive(flat_config(config.as_dict())).items():
        section, name = key.split(".", 1)
        tree.setdefault(section, {})[name] = value
    tree.setdefault("method", {})  # a method without settings has the section all the same
    text = json.dumps({"config": tree, "facts": facts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


MAX_FILE = 10_000_000


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file, with its faults as sentences."""
    odd = not_a_file(path)
    if odd is not None:
        raise UsageError(f"The config file {path} cannot be read: it {odd}.")
    try:
        if path.stat().st_size > MAX_FILE:
            raise UsageError(f"The config file {path} is larger than {MAX_FILE:,} bytes: that is no config.")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as fault:  # ValueError: not UTF-8, or a name that no file can have
        raise UsageError(f"The config file {path} cannot be read: {fault}.") from fault
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as fault:
        raise UsageError(f"The config file {path} is not valid TOML: {fault}.") from fault


def flatten(tree: Mapping[str, Any], source: str) -> dict[str, Any]:
    """`{"train": {"lr": 1}}` as `{"train.lr": 1}`; keys written with dots are the same thing."""
    flat: dict[str, Any] = {}
    for section, values in tree.items():
        if not isinstance(values, Mapping):
            raise UsageError(f"{source}: '{section}' must be a section like [train], not a single value.")
        for key, value in values.items():
            flat[f"{section}.{key}"] = value
    return flat


def _unknown_key(key: str, known: set[str], source: str) -> UsageError:
    close = nearest(key, known)
    section = key.split(".")[0]
    if section == "run":
        return UsageError(f"{source}: '{key}' is chosen with --method, --dataset, --recipe and --seed.")
    siblings = sorted(k for k in known if k.startswith(section + "."))
    if close:
        rest = f"Did you mean '{close}'? `--dry-run` lists all keys."
    elif siblings:
        rest = f"Keys of [{section}]: {', '.join(siblings)}."
    else:
        rest = f"Sections: {', '.join(sorted({k.split('.')[0] for k in known}))}."
    return UsageError(f"{source}: there is no key '{key}'. {rest}")
