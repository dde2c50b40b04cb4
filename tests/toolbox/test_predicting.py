from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcdbench.toolbox.predicting import name_clusters, predict_by_clusters


class FakePool:
    """Rows in memory; the queries are some of them, or others."""

    def __init__(self, features, target, places, others=None):
        self.all, self.target, self.query_places = features, target, places
        self.others = others

    @property
    def queries(self):
        return FakePool(self.others, None, None)

    def features(self, embed, views="test"):
        return embed(self.all)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(0, 4), st.integers(0, 1000))
def test_names_change_and_clusters_do_not(num_base, more, seed):
    random = np.random.default_rng(seed)
    clusters = num_base + more
    labels = random.integers(clusters, size=60)
    target = np.where(random.random(60) < 0.5, random.integers(num_base, size=60), -1)
    named = name_clusters(labels, target, num_base)
    pairs = set(zip(labels.tolist(), named.tolist(), strict=True))
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    assert named.min() >= 0
    assert named.max() < clusters
    again = name_clusters(named, target, num_base)
    known = target >= 0
    assert (again[known] == target[known]).sum() == (named[known] == target[known]).sum()


def test_clusters_of_base_classes_get_their_numbers():
    labels = np.array([3, 3, 0, 0, 1, 1, 2, 2])
    target = np.array([0, -1, 1, -1, -1, -1, -1, -1])
    assert name_clusters(labels, target, 2).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def groups() -> tuple[torch.Tensor, np.ndarray]:
    centres = torch.tensor([[0.0, 10.0], [10.0, 0.0], [-10.0, 0.0]])
    labels = np.repeat([2, 0, 1], 4)
    return centres[torch.from_numpy(np.repeat([0, 1, 2], 4))] + 0.1 * torch.randn(12, 2), labels


def test_rows_of_the_pool_keep_their_cluster():
    features, labels = groups()
    target = np.full(12, -1)
    target[0], target[4] = 0, 1
    places = np.array([5, 1, 9])
    answer = predict_by_clusters(FakePool(features, target, places), lambda x: x, features, labels, 2)
    assert answer.cluster.tolist() == [1, 0, 2]
    assert answer.base["main"].tolist()[:2] == [1, 0]
    assert answer.base["main"][2] in (0, 1)


def test_a_base_class_without_a_cluster_is_nobodys():
    """Fewer clusters than base classes can be left over: nobody is nearest to a mean that is nowhere."""
    features, _ = groups()
    labels = np.zeros(12, dtype=np.int64)
    target = np.full(12, -1)
    target[0] = 1
    answer = predict_by_clusters(FakePool(features, target, np.arange(12)), lambda x: x, features, labels, 3)
    assert set(answer.cluster) == set(answer.base["main"]) == {1}


def test_other_rows_go_to_the_nearest_mean():
    features, labels = groups()
    target = np.full(12, -1)
    target[0], target[4] = 0, 1
    others = torch.tensor([[9.0, 0.5], [-9.0, 0.0], [0.0, 8.0]])
    pool = FakePool(features, target, None, others)
    assert predict_by_clusters(pool, lambda x: x, features, labels, 2).cluster.tolist() == [1, 2, 0]
