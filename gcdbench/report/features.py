"""Maps of the feature space: t-SNE of the backbone's and the methods' features of the same rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gcdbench.contracts import IntArray
from gcdbench.report.outcome import Outcome

MAX_ROWS = 1000
FEWEST = 5
"""Fewer rows make no map."""
MAX_CLASSES = 20
FEW = 10
"""Classes that are drawn where there are more than can be told apart."""


def choose_positions(outcome: Outcome, seed: int = 0) -> tuple[IntArray, IntArray]:
    """Places of the rows to draw and their class (true, or predicted where the truth is unknown)."""
    label = outcome.cluster if outcome.target is None else outcome.target
    random = np.random.default_rng(seed)
    classes = np.unique(label)
    if len(classes) > MAX_CLASSES:
        base, novel = classes[classes < outcome.num_base], classes[classes >= outcome.num_base]
        half = FEW // 2
        kept = [
            random.permutation(side)[: max(half, FEW - len(other))] for side, other in ((base, novel), (novel, base))
        ]
        classes = np.concatenate(kept)
    positions = np.flatnonzero(np.isin(label, classes))
    if len(positions) > MAX_ROWS:
        positions = np.sort(random.permutation(positions)[:MAX_ROWS])
    return positions, label[positions]


def tsne(features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Two-dimensional maps of normalised features, the same every time."""
    from sklearn.manifold import TSNE

    found = {}
    for name, values in features.items():
        unit = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
        perplexity = min(30.0, max(1.0, (len(unit) - 1) / 3))
        found[name] = TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(unit)
    return found
