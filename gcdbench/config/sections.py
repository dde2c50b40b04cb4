"""The sections of a run's config, each a frozen dataclass that refuses what cannot be meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gcdbench.errors import UsageError, unknown

MAX_SIDE = 8192
MAX_VIEWS = 1024
MAX_COUNT = 1_000_000
"""Larger pixels, views, epochs and batches are slips of the keyboard, and end in confusing ways."""
VIEW_KINDS = ("weak", "strong", "affine", "randaugment")
"""Kinds of training views, see `views.kinds`."""


@dataclass(frozen=True)
class DataConfig:
    """Which rows are labelled and how many classes the method is given."""

    label_ratio: float = 0.5
    """Share of the base-class images that are labelled."""
    images: int | None = None
    """Use only this many training images, drawn once without looking at labels; None takes all. Which of them are
    labelled follows from the published draw over all images."""
    novel_ratio: float | None = None
    """Share of novel classes; None keeps the published split. A larger share cuts the end of the base list."""
    k: int | None = None
    """Number of classes the method assumes; None takes the true number (or what `k_from` finds)."""
    k_from: str | None = None
    """K estimator that finds the number of classes from images and visible labels before training."""
    on_bad_image: Literal["stop", "skip"] = "stop"
    """What to do about an image that cannot be read: stop, or leave it out (which makes another data set)."""

    def __post_init__(self) -> None:
        _within("data.label_ratio", self.label_ratio, 0, 1)
        if self.novel_ratio is not None:
            _within("data.novel_ratio", self.novel_ratio, 0, 1)
        if self.images is not None:
            _count("data.images", self.images)
        if self.k is not None and self.k < 1:
            raise UsageError(f"data.k is {self.k}; the number of classes must be at least 1.")
        if self.k is not None and self.k_from is not None:
            raise UsageError(f"data.k is {self.k} and data.k_from is '{self.k_from}'; give one of them.")


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
    kinds: tuple[str, ...] = ()
    """Kind of each view of a batch; empty: all `weak`, the crop as it is. `strong`: zoom, colour jitter, grey, blur,
    solarise; `affine`: rotated, shifted, sheared, smaller; `randaugment`: two of RandAugment's operations."""
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
        odd = [kind for kind in self.kinds if kind not in VIEW_KINDS]
        if odd:
            raise unknown("kind of view (views.kinds)", odd[0], VIEW_KINDS)
        if self.kinds and len(self.kinds) != self.count:
            raise UsageError(
                f"views.kinds names {len(self.kinds)} kinds for {self.count} views: give one for each view."
            )
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise UsageError("views.mean and views.std need three numbers each, and std must be positive.")


@dataclass(frozen=True)
class BackboneConfig:
    """The pretrained network."""

    name: str = "dino"
    """A short name (`gcdbench list backbones`), or the timm name of a ViT or of a network with a feature map."""
    weights: str = "pretrained"
    """`pretrained` (hub cache or shipped file), `random`, or the path of a .safetensors/.pth file."""
    train_from: int = -1
    """First trained block, counted from the end if negative; -1 trains the last block, 0 everything. Networks with a
    feature map are frozen whole, and their tail is trained."""
    pca: int | None = None
    """Networks with a feature map: project each cell to this many dimensions; None keeps the channels."""
    pca_images: int = 10_000
    """Training images (labels unseen) on which the PCA is fitted, or all of them if there are fewer."""
    tail_depth: int = 1
    """Networks with a feature map: transformer blocks behind it, all of them trained."""
    tail_heads: int = 4
    """Attention heads of such a block."""
    tail_width: int | None = None
    """Width of attention in such a block, whose MLP is four times as wide; None takes that of the tokens."""
    tail_norm: Literal["own", "layer"] = "own"
    """Networks with a feature map: what a method means by the final norm. `own`: the one the network applies to its
    pooled map, if it has one and its channels are kept; `layer`: a LayerNorm without weights."""
    tail_read: Literal["plain", "folded"] = "plain"
    """How the last block reads CLS and extra tokens: `plain` computes keys and values of all tokens; `folded`
    multiplies the few queries instead, the same numbers up to rounding in a fifth of the time on a CPU."""

    def __post_init__(self) -> None:
        for name in ("pca_images", "tail_depth", "tail_heads"):
            _count(f"backbone.{name}", getattr(self, name))
        for name in ("pca", "tail_width"):
            if getattr(self, name) is not None:
                _count(f"backbone.{name}", getattr(self, name))

    def map_keys(self) -> tuple[str, ...]:
        """Keys that are not at their default and mean something for networks with a feature map only."""
        plain = BackboneConfig()
        names = ("pca", "pca_images", "tail_depth", "tail_heads", "tail_width", "tail_norm")
        return tuple(f"backbone.{name}" for name in names if getattr(self, name) != getattr(plain, name))


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
    precision: Literal["fp32", "bf16", "fp16", "fp64"] = "fp32"
    """Precision of trunk and tail; losses are always computed in float32. `fp64` computes everything in double
    precision, for comparing implementations."""
    micro_batch: int = 256
    """Images per trunk pass; changes memory, not results beyond rounding."""
    sampler: Literal["balanced", "mostly-labelled", "paired"] = "balanced"
    """How batches are drawn: `balanced` as published for most methods (labelled and unlabelled rows equally often, with
    replacement), `mostly-labelled` (more than half labelled), or `paired` (labelled rows, then unlabelled ones, in
    proportion to the sets, each set shuffled)."""
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
    """Also evaluate every N epochs (0: only at the end, or each epoch if the selection rule needs it)."""
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
    """Tokens of evaluation views. `auto`: in memory if they are small, else exactly on disk if a run evaluates often
    and four times the room is free, else computed again. The others: a store on disk of this type; fp32 is exact, the
    others round."""
    train_views: int = 0
    """Train on this many stored views of each image instead of fresh ones; 0 means fresh ones. Not exact."""
    train_tokens: Literal["fp32", "bf16", "fp16"] = "bf16"
    """Type in which training views are stored."""

    def __post_init__(self) -> None:
        if not 0 <= self.train_views <= MAX_VIEWS:
            raise UsageError(f"store.train_views is {self.train_views}; it must be from 0 to {MAX_VIEWS}.")


def _count(key: str, value: int) -> None:
    if not 1 <= value <= MAX_COUNT:
        raise UsageError(f"{key} is {value}; it must be at least 1 and at most {MAX_COUNT:,}.")


def _within(key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{key} is {value}; it must lie between {low} and {high}.")
