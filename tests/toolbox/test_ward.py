from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage

from gcdbench.errors import UsageError
from gcdbench.toolbox.ward import ward


def rows(count: int, dim: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def same_partition(one: np.ndarray, other: np.ndarray) -> bool:
    return len(set(zip(one, other, strict=True))) == len(set(one)) == len(set(other))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 60), st.integers(1, 8), st.integers(0, 99))
def test_merges_and_cuts_are_those_of_scipy(count, dim, seed):
    x = rows(count, dim, seed)
    tree, theirs = ward(torch.from_numpy(x)), linkage(x.astype(np.float64), "ward")
    np.testing.assert_allclose(tree.heights, theirs[:, 2], rtol=1e-4, atol=1e-5)
    gaps = np.diff(theirs[:, 2])
    for k in range(1, count + 1):
        if 1 < k < count and gaps[count - k - 1] < 1e-4:
            continue  # two merges of the same height have no order
        assert same_partition(tree.cut(k), fcluster(theirs, k, "maxclust")), k


def test_equal_rows_are_merged_first_and_end():
    x = np.repeat(rows(6), 5, axis=0)
    tree = ward(torch.from_numpy(x))
    assert same_partition(tree.cut(6), np.repeat(np.arange(6), 5))
    assert (tree.heights[:24] < 1e-6).all()
    assert ward(torch.zeros(20, 3)).cut(3).max() == 2


def test_nodes_are_sets_of_rows_and_counts_are_theirs():
    x = rows(40)
    tree = ward(torch.from_numpy(x))
    target = np.where(np.arange(40) % 3 == 0, np.arange(40) % 4, -1)
    count = tree.counts(target, 4)
    for k in (1, 2, 7, 40):
        labels, table = tree.cut(k), count(tree.nodes(k))
        expected = [[int(((labels == c) & (target == cls)).sum()) for cls in range(4)] for c in range(k)]
        assert sorted(map(tuple, table.tolist())) == sorted(map(tuple, expected))


def test_clusters_are_numbered_by_their_first_row():
    labels = ward(torch.from_numpy(rows(30))).cut(6)
    assert labels[0] == 0
    first = [int(np.flatnonzero(labels == c)[0]) for c in range(6)]
    assert first == sorted(first)


def test_odd_input_is_told():
    assert ward(torch.zeros(1, 3)).cut(1).tolist() == [0]
    with pytest.raises(UsageError, match="rows of features"):
        ward(torch.zeros(3))
    with pytest.raises(UsageError, match="not finite"):
        ward(torch.tensor([[float("nan")]]))
    with pytest.raises(UsageError, match="too large"):
        ward(torch.full((3, 2), 1e200, dtype=torch.float64) * torch.tensor([[1.0], [-1.0], [1.0]]))
    with pytest.raises(UsageError, match="cannot be cut into 4"):
        ward(torch.zeros(3, 2)).cut(4)


def test_progress_is_told(monkeypatch):
    from gcdbench.toolbox import ward as module

    monkeypatch.setattr(module, "TELL", 5)
    told: list[tuple[int, int]] = []
    ward(torch.from_numpy(rows(21)), lambda done, total: told.append((done, total)))
    assert told == [(5, 20), (10, 20), (15, 20), (20, 20)]


def test_memory_grows_with_the_rows_and_not_with_their_square():
    """Tensors alive at a time, counted where they are made: no table of distances between all rows."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            found = func(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor):
                largest = max(largest, found.numel())
            return found

    with Watch():
        ward(torch.from_numpy(rows(300, 4)))
    assert largest <= 300 * 4


def test_rows_that_nearly_coincide_are_told_apart():
    """As after mean shift: groups a millionth wide, far from the origin."""
    random = np.random.default_rng(0)
    x = np.repeat(rows(8, 16), 12, axis=0).astype(np.float64) + 3
    x = torch.from_numpy(x + 1e-6 * random.normal(size=x.shape))
    theirs = linkage(x.numpy(), "ward")
    np.testing.assert_allclose(ward(x).heights, theirs[:, 2], rtol=1e-4, atol=1e-8)
