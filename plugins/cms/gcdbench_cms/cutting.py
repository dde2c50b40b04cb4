"""Where to cut a tree of clusters: where it agrees best with the labels of labelled rows. No other label is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from scipy.optimize import linear_sum_assignment

from gcdbench import IntArray
from gcdbench.toolbox.ward import Dendrogram


@dataclass(frozen=True)
class Cut:
    """A number of clusters, how well the labelled rows agree with it, and what else was tried."""

    clusters: int
    accuracy: float
    tried: dict[int, float] = field(default_factory=dict)


def best_cut(tree: Dendrogram, target: IntArray, num_base: int, smallest: int, largest: int, patience: int = 50) -> Cut:
    """The number of clusters with the highest accuracy, from the smallest upward until ``patience`` were worse.

    Labelled rows cannot tell whether novel classes are kept apart: from the cut that separates the known classes to the
    one at which they begin to fall to pieces, their accuracy is the same. Among equal cuts the clearest is taken: that
    whose next merge is highest compared with its last one.
    """
    count = tree.counts(target, num_base)
    labelled = max(1, int((target >= 0).sum()))
    nodes = set(tree.nodes(smallest))
    tried: dict[int, float] = {}
    best, since = smallest, 0
    for clusters in range(smallest, min(largest, tree.rows) + 1):
        if clusters > smallest:  # the merge that is undone next is the highest one left
            node = max(nodes)
            nodes.remove(node)
            nodes.update(map(int, tree.merges[node - tree.rows]))
        table = count(sorted(nodes))
        tried[clusters] = float(table[linear_sum_assignment(table, maximize=True)].sum() / labelled)
        since += 1
        if tried[clusters] > tried[best]:
            best, since = clusters, 0
        if since > patience:
            break
    equal = [clusters for clusters, accuracy in tried.items() if accuracy == tried[best]]
    best = max(equal, key=lambda clusters: (_clearness(tree, clusters), -clusters))
    return Cut(best, tried[best], tried)


def _clearness(tree: Dendrogram, clusters: int) -> float:
    """Height of the merge that would join two of the clusters, over that of the last merge that made one of them."""
    if clusters < 2:
        return 0.0
    following = tree.heights[-(clusters - 1)]
    last = tree.heights[-clusters] if clusters <= len(tree.heights) else 0.0
    return float(following / max(last, 1e-12))
