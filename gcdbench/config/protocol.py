"""What makes two results comparable. Results with different fingerprints never stand in one table."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Protocol:
    """Everything about data, scoring and selection that two comparable runs must share."""

    dataset: str
    index_hash: str
    """Files and labels of the training (and, if scored, test) set."""
    split_hash: str
    """Base and novel classes in order, labelled and unlabelled rows."""
    scored_rows: str
    """`unlabelled` training rows or `test` rows."""
    evaluators: Mapping[str, int]
    """Version of each evaluator."""
    k: int | None
    """Number of classes the method was given; None if it finds one itself."""
    k_source: str
    """`true`, `given`, `estimated` (by a K estimator) or `method`."""
    selection: str
    """Rule that picks the epoch."""
    reads: tuple[str, ...] = ()
    """What the method reads beyond images and the labels of labelled rows."""
    approximations: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What was not computed exactly because the user chose so: rounded evaluation tokens, stored training views, tokens
    projected by a PCA."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as it is written to the record."""
        data = {**dataclasses.asdict(self), "evaluators": dict(self.evaluators), "reads": list(self.reads)}
        if not self.approximations:  # exact runs have the fingerprint they always had
            del data["approximations"]
        return data

    def fingerprint(self) -> str:
        """Sixteen hex digits that are equal exactly when the protocols are."""
        return fingerprint_of(self.as_dict())


def fingerprint_of(protocol: Mapping[str, Any]) -> str:
    """The fingerprint of a protocol as plain data."""
    return hashlib.sha256(json.dumps(protocol, sort_keys=True).encode()).hexdigest()[:16]


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The fields in which two protocols (as plain data) differ."""
    keys = [*one, *(k for k in other if k not in one)]
    return {k: (one.get(k), other.get(k)) for k in keys if one.get(k) != other.get(k)}
