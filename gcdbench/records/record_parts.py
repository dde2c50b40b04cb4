"""The parts of a record that are objects themselves. `record.schema.json` is generated from these classes and `Record`:
a dictionary beside a type is put into the schema as it is."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

Count = Annotated[int, {"minimum": 0}]
Positive = Annotated[int, {"minimum": 1}]
Seconds = Annotated[float, {"minimum": 0}]
Word = Annotated[str, {"minLength": 1}]
Hash = Annotated[str, {"pattern": "^[0-9a-f]{16}$"}]


class Hashes(TypedDict):
    """SHA-256 of predictions.npz and of the metrics."""

    predictions: str
    metrics: str


class EvaluatorFacts(TypedDict):
    """An evaluator's version and the names of its metrics."""

    version: int
    metrics: list[str]


class Selected(TypedDict):
    """Which predictions were scored."""

    rule: str
    stage: str
    epoch: Count


class Approximations(TypedDict):
    """What was not computed exactly."""

    eval_tokens: NotRequired[Literal["bf16", "fp16"]]
    train_views: NotRequired[Positive]
    train_tokens: NotRequired[Literal["fp32", "bf16", "fp16"]]
    pca: NotRequired[Positive]
    pca_images: NotRequired[Positive]


class ProtocolFacts(TypedDict):
    """What two comparable results must share."""

    dataset: str
    index_hash: str
    split_hash: str
    scored_rows: Literal["unlabelled", "test"]
    evaluators: dict[str, int]
    k: Annotated[int | None, {"minimum": 1}]
    """Number of classes the method was given; null if it found the number itself."""
    k_source: Literal["true", "given", "estimated", "method"]
    selection: str
    reads: list[str]
    approximations: NotRequired[Annotated[Approximations, {"minProperties": 1}]]
    """What was not computed exactly because the user chose so."""


class Projection(TypedDict):
    """The PCA of a network with a feature map."""

    dims: Positive
    images: Positive
    variance: float
    hash: Hash


class BackboneFacts(TypedDict):
    """The network and its weights."""

    name: str
    architecture: str
    weights: str
    weights_hash: str
    parameters: int
    image_size: int
    projection: NotRequired[Projection]
    """The PCA of a network with a feature map: width, images it was fitted on, share of variance kept, hash."""


class KEstimate(TypedDict):
    """An estimated number of classes."""

    k: Positive
    estimator: str
    package: str
    largest: Positive
    seconds: Seconds
    scores: dict[str, float]


class SourceState(TypedDict):
    """State of a source tree."""

    commit: str
    dirty: bool


OPEN = {"additionalProperties": True}
"""Plugins may add keys."""
SECTIONS: dict[str, Any] = {
    "required": ["run", "data", "views", "backbone", "train", "eval", "method"],
    "properties": {
        "train": {"type": "object", "required": ["epochs", "precision"]},
        "eval": {"type": "object", "required": ["rows", "selection"]},
    },
}
"""Sections and keys of a config that readers of records rely on."""
