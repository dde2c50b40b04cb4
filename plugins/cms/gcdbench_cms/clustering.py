"""The clusters of CMS: mean shift over all rows, Ward's tree after each round, the round that fits the labels best."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench import IntArray
from gcdbench.toolbox.ward import Dendrogram, ward
from gcdbench_cms.cutting import Cut, best_cut
from gcdbench_cms.meanshift import shift_all, shift_in_place


@dataclass(frozen=True)
class Shifting:
    """Settings of the iterated mean shift."""

    neighbours: int = 8
    alpha: float = 0.5
    rounds: int = 20
    """Rounds at most."""
    patience: int = 2
    """Rounds without a better accuracy of the labelled rows after which it ends."""
    aliased: bool = False
    """Shift in place from the second shift on."""


@dataclass(frozen=True)
class Shifted:
    """The best round."""

    tree: Dendrogram
    cut: Cut

    def labels(self) -> IntArray:
        """The cluster of each row."""
        return self.tree.cut(self.cut.clusters)


def shift_and_cut(
    features: Tensor, target: IntArray, num_base: int, smallest: int, largest: int, settings: Shifting
) -> Shifted:
    """Shift, build the tree and cut it, until labelled rows agree no better. The first round is without a shift.

    ``smallest`` and ``largest`` bound the number of clusters; equal, they fix it.
    """
    current = F.normalize(features.float(), dim=1)
    best: Shifted | None = None
    since = 0
    for number in range(settings.rounds):
        if number:
            how = (current, settings.neighbours, settings.alpha)
            in_place = settings.aliased and number > 1
            current = shift_in_place(*how, torch.from_numpy(target >= 0)) if in_place else shift_all(*how)
        tree = ward(current)
        found = Shifted(tree, best_cut(tree, target, num_base, smallest, largest))
        since += 1
        # Of equal rounds the later one is taken: its clusters are tighter. Patience counts real gains only.
        if best is None or found.cut.accuracy >= best.cut.accuracy:
            since = 0 if best is None or found.cut.accuracy > best.cut.accuracy else since
            best = found
        if since >= settings.patience:
            break
    assert best is not None
    return best
