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
from typing import Any, Literal, get_type_hints

from gcdbench.coercion import coerce
from gcdbench.errors import UsageError, nearest

MAX_SIDE = 8192
MAX_VIEWS = 1024
MAX_COUNT = 1_000_000
"""Larger pixels, views, epochs and batches are slips of the keyboard, and end in confusing ways."""


@dataclass(frozen=True)
class DataConfig:
    """Which rows are labelled and how many classes the method is told about."""

    label_ratio: float = 0.5
    """Share of the base-class images that are labelled."""
    novel_ratio: float | None = None
    """Share of novel classes; None keeps the published split. A larger share cuts the end of the base list."""
    k: int | None = None
    """Number of classes the method assumes; None takes the true number."""
    on_bad_image: Literal["stop", "skip"] = "stop"
    """What to do about an image that cannot be read: stop, or leave it out (which makes another data set)."""

    def __post_init__(self) -> None:
        _within("data.label_ratio", self.label_ratio, 0, 1)
        if self.novel_ratio is not None:
            _within("data.novel_ratio", self.novel_ratio, 0, 1)
        if self.k is not None and self.k < 1:
            raise UsageError(f"data.k is {self.k}; the number of classes must be at least 1.")


@dataclass(frozen=True)
class ViewConfig:
    """How an image becomes a network input. The published protocol: resize 256, random 224 crop, flip."""

    resize: int = 256
    """Shorter side after resizing (bicubic)."""
    crop: int = 224
    """Side of the square crop: random in training, central in evaluation."""
    flip: bool = True
    """Mirror half of the training views."""
    count: int = 2
    """Views of each image in a training batch."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Subtracted from each channel (of a 0..1 image)."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Each channel is divided by this."""

    def __post_init__(self) -> None:
        if not 0 < self.crop <= self.resize:
            raise UsageError(
                f"views.crop is {self.crop} and views.resize is {self.resize}; "
                "the crop must be positive and not larger than the resized image."
            )
        if self.resize > MAX_SIDE:
            raise UsageError(f"views.resize is {self.resize}; images are made at most {MAX_SIDE} pixels large.")
        if not 1 <= self.count <= MAX_VIEWS:
            raise UsageError(f"views.count is {self.count}; it must be from 1 to {MAX_VIEWS}.")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise UsageError("views.mean and views.std need three numbers each, and std must be positive.")


@dataclass(frozen=True)
class BackboneConfig:
    """The pretrained network."""

    name: str = "dino"
    """A short name (`gcdbench list backbones`) or any timm ViT name."""
    weights: str = "pretrained"
    """`pretrained` (hub cache or shipped file), `random`, or the path of a .safetensors/.pth file."""
    train_from: int = -1
    """First trained block, counted from the end if negative; -1 trains the last block, 0 everything."""


@dataclass(frozen=True)
class TrainConfig:
    """The training loop and its default optimiser."""

    epochs: int = 200
    """Passes over the training set."""
    batch_size: int = 128
    """Images per step (each gives `views.count` views)."""
    lr: float = 0.1
    """Starting learning rate of SGD."""
    momentum: float = 0.9
    """Momentum of SGD."""
    weight_decay: float = 5e-5
    """Weight decay (not on biases and other one-dimensional parameters unless the method says so)."""
    lr_floor: float = 1e-3
    """The cosine schedule ends at lr x lr_floor."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of trunk and tail; losses are always computed in float32."""
    micro_batch: int = 256
    """Images per trunk pass; changes memory, not results beyond rounding."""
    stream: int | None = None
    """Seed of batches and views; None takes the run's seed. Seeds that share a stream share trunk passes."""
    compile: bool = False
    """Compile the trunk with torch.compile; equal to the plain trunk up to rounding."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "micro_batch"):
            _count(f"train.{name}", getattr(self, name))
        if self.stream is not None and self.stream < 0:
            raise UsageError(f"train.stream is {self.stream}; a seed must be at least 0.")
        if self.lr <= 0:
            raise UsageError(f"train.lr is {self.lr}; it must be positive.")
        for name in ("momentum", "weight_decay", "lr_floor"):
            if getattr(self, name) < 0:
                raise UsageError(f"train.{name} is {getattr(self, name)}; it must not be negative.")


@dataclass(frozen=True)
class EvalConfig:
    """Which rows are scored, which epoch counts."""

    rows: Literal["unlabelled", "test"] = "unlabelled"
    """`unlabelled`: the unlabelled training rows (the published protocol); `test`: the disjoint test rows."""
    selection: str = "last"
    """Which epoch's predictions count; see `gcdbench.evaluation.selection`."""
    every: int = 0
    """Also evaluate every so many epochs (0: only at the end, or each epoch if the selection rule needs it)."""
    batch_size: int = 256
    """Images per forward pass in evaluation."""

    def __post_init__(self) -> None:
        _count("eval.batch_size", self.batch_size)
        if self.every < 0:
            raise UsageError(f"eval.every is {self.every}; it must be at least 0.")


@dataclass(frozen=True)
class StoreConfig:
    """Trunk tokens that are kept instead of being computed again."""

    eval_tokens: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Tokens of evaluation views. `auto`: in memory if they are small; otherwise a store on disk of this type.
    fp32 is exact; the others round."""
    train_views: int = 0
    """Train on so many stored views of each image instead of fresh ones; 0 means fresh ones. Not exact."""
    train_tokens: Literal["fp32", "bf16", "fp16"] = "bf16"
    """Type in which training views are stored."""

    def __post_init__(self) -> None:
        if not 0 <= self.train_views <= MAX_VIEWS:
            raise UsageError(f"store.train_views is {self.train_views}; it must be from 0 to {MAX_VIEWS}.")


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
        """What is not exact because the user chose so; part of the protocol."""
        found: dict[str, Any] = {}
        if self.store.eval_tokens in ("bf16", "fp16"):
            found["eval_tokens"] = self.store.eval_tokens
        if self.store.train_views:
            found["train_views"] = self.store.train_views
            found["train_tokens"] = self.store.train_tokens
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
    "train.stream": (None,),
    "train.compile": (False,),
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
    built = {section: cls(**values[section]) for section, cls in classes.items()}
    plugin = built.pop("method")
    config = RunConfig(method=method, dataset=dataset, recipe=recipe, seed=seed, method_config=plugin, **built)
    return Resolved(config, sources, tuple(presets))


def flat_config(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A config as written to `config.json`, as `section.key` to value; without [run] and what is no setting."""
    sections = {name: values for name, values in tree.items() if name in SECTIONS or name == "method"}
    return {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}


def decisive(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Of a config as `section.key` to value, what decides the result."""
    kept = {k: v for k, v in flat.items() if k not in NOT_IN_IDENTITY and v not in NEUTRAL.get(k, ())}
    if "store.train_views" not in kept:
        kept.pop("store.train_tokens", None)
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


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file, with its faults told as sentences."""
    try:
        text = path.read_text(encoding="utf-8")
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


def _count(key: str, value: int) -> None:
    if not 1 <= value <= MAX_COUNT:
        raise UsageError(f"{key} is {value}; it must be at least 1 and at most {MAX_COUNT:,}.")


def _within(key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{key} is {value}; it must lie between {low} and {high}.")


def _unknown_key(key: str, known: set[str], source: str) -> UsageError:
    close = nearest(key, known)
    section = key.split(".")[0]
    siblings = sorted(k for k in known if k.startswith(section + "."))
    if close:
        rest = f"Did you mean '{close}'? `--dry-run` lists all keys."
    elif siblings:
        rest = f"Keys of [{section}]: {', '.join(siblings)}."
    else:
        rest = f"Sections: {', '.join(sorted({k.split('.')[0] for k in known}))}."
    return UsageError(f"{source}: there is no key '{key}'. {rest}")
