"""k-means against plain loops, and its promises: fixed labels, no NaN, the same answer every time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcdbench.errors import UsageError
from gcdbench.toolbox import kmeans as clustering
from gcdbench.toolbox.kmeans import kmeans, semi_supervised_kmeans


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(clusters: int = 6, rows: int = 300, dim: int = 16, spread: float = 0.3, seed: int = 0):
    random = seeded(seed)
    centres = torch.randn(clusters, dim, generator=random) * 2
    truth = torch.arange(rows) % clusters
    return centres[truth] + spread * torch.randn(rows, dim, generator=random), truth


def plain_lloyd(data, targets, centres, iterations):
    """Row by row, cluster by cluster."""
    for _ in range(iterations):
        distance = torch.stack([((data - c) ** 2).sum(1) for c in centres], 1)
        labels = torch.where(targets >= 0, targets, distance.argmin(1))
        centres = torch.stack([data[labels == k].mean(0) if (labels == k).any() else c for k, c in enumerate(centres)])
    distance = torch.stack([((data - c) ** 2).sum(1) for c in centres], 1)
    labels = torch.where(targets >= 0, targets, distance.argmin(1))
    return labels, centres, distance.gather(1, labels[:, None]).sum().item()


@pytest.mark.parametrize("labelled", [0, 2])
def test_iterations_equal_plain_loops(labelled, monkeypatch):
    data, truth = blobs(spread=2.0)
    targets = torch.where((truth < labelled) & (torch.arange(len(truth)) % 3 == 0), truth, -1)
    data = data - data.mean(0, dtype=torch.float64).float()
    starts = []
    original = clustering._starts

    def remember(*arguments):
        starts.append(original(*arguments))
        return starts[0].clone()

    monkeypatch.setattr(clustering, "_starts", remember)
    found = semi_supervised_kmeans(data, targets, 6, seeded(), restarts=4, iterations=7, tolerance=0)
    answers = [plain_lloyd(data, targets, start, 7) for start in starts[0]]
    labels, centres, inertia = min(answers, key=lambda a: a[2])
    assert torch.equal(found.labels, labels)
    assert torch.allclose(found.centres, centres, atol=1e-5)
    assert found.inertia == pytest.approx(inertia, rel=1e-5)


def test_separate_groups_are_found_and_scikit_learn_finds_no_better():
    from sklearn.cluster import KMeans

    data, truth = blobs(clusters=10, rows=1000)
    found = kmeans(data, 10, seeded())
    for k in range(10):
        assert len(truth[found.labels == k].unique()) == 1
    theirs = KMeans(10, n_init=10, random_state=0).fit(data.numpy())
    assert found.inertia == pytest.approx(theirs.inertia_, rel=1e-4)


def test_labelled_rows_keep_their_class():
    data, truth = blobs(spread=4.0)
    targets = torch.where((truth < 3) & (torch.rand(len(truth), generator=seeded()) < 0.5), truth, -1)
    found = semi_supervised_kmeans(data, targets, 6, seeded())
    known = targets >= 0
    assert torch.equal(found.labels[known], targets[known])


def test_class_clusters_stay_the_classes():
    data, truth = blobs(clusters=8, rows=800)
    targets = torch.where((truth < 4) & (torch.rand(800, generator=seeded()) < 0.5), truth, -1)
    found = semi_supervised_kmeans(data, targets, 8, seeded())
    assert torch.equal(found.labels[truth < 4], truth[truth < 4])


def test_the_first_centres_are_class_means_and_the_others_are_rows():
    data, truth = blobs()
    targets = torch.where(truth < 2, truth, -1)
    starts = clustering._starts(data, targets, 2, 6, 5, seeded())
    assert torch.allclose(starts[3, 1], data[truth == 1].mean(0), atol=1e-5)
    others = starts[:, 2:].reshape(-1, data.shape[1])
    assert ((others[:, None] == data[truth >= 2]).all(2).any(1)).all()
    # Drawn by distance: no restart draws the same row twice.
    assert all(len(start.unique(dim=0)) == 6 for start in starts)


def test_kmeans_plus_plus_prefers_far_rows():
    near, far = torch.zeros(999, 2), torch.tensor([[100.0, 0.0]])
    near += 0.001 * torch.randn(near.shape, generator=seeded())
    starts = clustering._starts(torch.cat([near, far]), torch.full((1000,), -1), 0, 2, 50, seeded(1))
    assert (starts[:, :, 0] > 50).any(1).float().mean() > 0.95


@pytest.mark.parametrize(
    "data",
    [
        torch.zeros(20, 3),
        torch.cat([torch.zeros(19, 3), torch.ones(1, 3)]),
        torch.full((20, 3), 1e6) + torch.arange(20)[:, None],
    ],
    ids=["equal rows", "two values", "far from zero"],
)
def test_empty_clusters_and_equal_rows_give_no_nan(data):
    found = kmeans(data, 7, seeded(), restarts=3)
    assert found.centres.isfinite().all()
    assert torch.isfinite(torch.tensor(found.inertia))
    assert 0 <= found.labels.min() <= found.labels.max() < 7


def test_the_same_seed_gives_the_same_answer_and_blocks_change_nothing(monkeypatch):
    data, truth = blobs(spread=3.0, rows=500)
    targets = torch.where(truth < 1, truth, -1)
    first = semi_supervised_kmeans(data, targets, 9, seeded(5))
    again = semi_supervised_kmeans(data, targets, 9, seeded(5))
    assert torch.equal(first.labels, again.labels)
    assert torch.equal(first.centres, again.centres)
    monkeypatch.setattr(clustering, "BLOCK_BYTES", 40_000)
    assert torch.equal(semi_supervised_kmeans(data, targets, 9, seeded(5)).labels, first.labels)


def test_global_randomness_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    kmeans(blobs()[0], 6, seeded())
    assert torch.equal(torch.rand(1), expected)


def test_more_restarts_are_never_worse():
    data, _ = blobs(clusters=12, spread=1.5)
    one = kmeans(data, 12, seeded(2), restarts=1).inertia
    assert min(one, kmeans(data, 12, seeded(2), restarts=20).inertia) <= one
    assert kmeans(data, 12, seeded(2), restarts=20).inertia <= one * 1.0001


def test_work_is_bounded_and_watched():
    seen = []
    data, _ = blobs(spread=5.0)
    found = kmeans(data, 20, seeded(), restarts=3, iterations=4, tolerance=0, watch=lambda i, n: seen.append((i, n)))
    assert seen[-1][0] <= 4
    assert seen[0] == (1, 4)
    assert found.iterations <= 4


def test_sums_by_matrix_product_equal_sums_by_index():
    """The form for accelerators, which has a fixed order of addition there."""
    data, truth = blobs()
    before = torch.full((8, 16), 7.0)
    plain = clustering.cluster_means(data, truth, before)
    one_hot = torch.nn.functional.one_hot(truth, 8).float()
    by_product = torch.where(
        one_hot.sum(0)[:, None] > 0, one_hot.T @ data / one_hot.sum(0)[:, None].clamp(min=1), before
    )
    assert torch.allclose(plain, by_product, atol=1e-5)
    assert (plain[6:] == 7).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(0, 3), st.integers(8, 40))
def test_inertia_is_what_labels_and_centres_say(seed, clusters, classes, rows):
    classes = min(classes, clusters)
    data, _ = blobs(rows=rows, dim=4, spread=1.0, seed=seed)
    targets = torch.full((rows,), -1)
    targets[:classes] = torch.arange(classes)
    found = semi_supervised_kmeans(data, targets, clusters, seeded(seed), restarts=2)
    own = ((data - found.centres[found.labels]) ** 2).sum().item()
    assert found.inertia == pytest.approx(own, rel=1e-3, abs=1e-3)
    free = targets < 0
    nearest = torch.cdist(data[free].double(), found.centres.double())
    chosen = nearest.gather(1, found.labels[free][:, None])[:, 0]
    assert (chosen <= nearest.amin(1) + 1e-3).all()


def test_wrong_questions_are_sentences():
    data = torch.randn(10, 3)
    hidden = torch.full((10,), -1)
    with pytest.raises(UsageError, match="cannot fill them"):
        kmeans(data, 11, seeded())
    with pytest.raises(UsageError, match="without a gap"):
        semi_supervised_kmeans(data, hidden.index_fill(0, torch.tensor([1]), 3), 5, seeded())
    with pytest.raises(UsageError, match="not finite"):
        kmeans(data * float("nan"), 2, seeded())
    with pytest.raises(UsageError, match="at least one"):
        kmeans(data, 2, seeded(), restarts=0)
    for features, targets in (
        (data, hidden[:3]),
        (data, hidden.float()),
        (torch.zeros(10, 0), hidden),
        (data[0], hidden),
    ):
        with pytest.raises(UsageError, match="a whole number for each"):
            semi_supervised_kmeans(features, targets, 2, seeded())
    with pytest.raises(UsageError, match="too large for float32"):
        kmeans(data * 1e20, 2, seeded())


@pytest.mark.parametrize("offset", [0.0, 3e3, 1e4])
def test_far_from_the_origin_is_as_good_as_near(offset):
    data, truth = blobs(clusters=5, spread=0.1)
    found = kmeans(data + offset, 5, seeded())
    assert all(len(truth[found.labels == k].unique()) == 1 for k in range(5))
    own = ((data + offset - found.centres[found.labels]) ** 2).sum().item()
    assert found.inertia == pytest.approx(own, rel=0.05)


def test_numpy_targets_are_taken():
    data, truth = blobs()
    assert torch.equal(semi_supervised_kmeans(data, truth.numpy(), 6, seeded()).labels, truth)


def greedy_starts(data, clusters, draws):
    """k-means++ with candidates, one candidate and one row at a time."""
    chosen = []
    for number in range(clusters):
        nearest = np.array([min(((row - c) ** 2).sum() for c in chosen) if chosen else 1.0 for row in data])
        total = nearest.cumsum()
        tries = draws[number][:1] if number == 0 else draws[number]
        rows = [min(int(np.searchsorted(total, d * total[-1], side="right")), len(data) - 1) for d in tries]
        left = [np.minimum(nearest, ((data - data[row]) ** 2).sum(1)).sum() for row in rows]
        chosen.append(data[rows[int(np.argmin(left))]] if number else data[rows[0]])
    return np.stack(chosen)


@pytest.mark.parametrize("block", [64 << 20, 4000])
def test_starts_without_labels_are_greedy(block, monkeypatch):
    monkeypatch.setattr(clustering, "BLOCK_BYTES", block)
    data, _ = blobs(spread=2.0)
    found = clustering._starts(data, torch.full((len(data),), -1), 0, 9, 3, seeded(5))
    tries = 2 + int(math.log(9))
    draws = torch.rand((9, 3, tries), generator=seeded(5), dtype=torch.float64).numpy()
    for restart in range(3):
        expected = greedy_starts(data.double().numpy(), 9, draws[:, restart])
        np.testing.assert_allclose(found[restart].numpy(), expected, atol=1e-5)


def test_starts_with_labels_draw_one_candidate():
    """As the published semi-supervised k-means does."""
    data, truth = blobs(spread=2.0)
    targets = torch.where((truth < 2) & (torch.arange(len(truth)) // 6 % 2 == 0), truth, -1)
    found = clustering._starts(data, targets, 2, 6, 2, seeded(5))
    draws = torch.rand((4, 2), generator=seeded(5), dtype=torch.float64)
    rows = data[targets < 0]
    for restart in range(2):
        centres = [data[targets == 0].mean(0), data[targets == 1].mean(0)]
        for number in range(4):
            nearest = torch.stack([((rows - c) ** 2).sum(1) for c in centres]).amin(0).double()
            place = torch.searchsorted(nearest.cumsum(0), draws[number, restart] * nearest.sum(), right=True)
            centres.append(rows[place])
        torch.testing.assert_close(found[restart], torch.stack(centres))


def judged(data, truth, clusters, seeds, restarts=2):
    """Mean inertia and accuracy of ours and of scikit-learn, at the same number of restarts."""
    from sklearn.cluster import KMeans

    from gcdbench.toolbox.cluster_accuracy import v2

    ours, theirs = [], []
    for seed in range(seeds):
        found = kmeans(data, clusters, seeded(seed), restarts=restarts, iterations=300)
        ours.append((found.inertia, v2(truth, found.labels.numpy(), 5).all))
        other = KMeans(clusters, n_init=restarts, max_iter=300, random_state=seed).fit(data.numpy())
        theirs.append((other.inertia_, v2(truth, other.labels_.astype(np.int64), 5).all))
    return np.mean(ours, axis=0), np.mean(theirs, axis=0)


@pytest.mark.parametrize(
    ("clusters", "rows", "seeds"), [(10, 600, 40), (50, 1000, 20), (100, 1500, 10), (200, 2000, 6)]
)
def test_blobs_are_clustered_as_well_as_by_scikit_learn(clusters, rows, seeds):
    data, truth = blobs(clusters, rows, dim=24, spread=1.6)
    (inertia, accuracy), (their_inertia, their_accuracy) = judged(data, truth.numpy(), clusters, seeds)
    assert inertia <= 1.01 * their_inertia
    assert accuracy >= their_accuracy - 0.01


@pytest.mark.parametrize(("clusters", "seeds"), [(10, 30), (50, 12), (200, 6)])
def test_digits_are_clustered_as_well_as_by_scikit_learn(clusters, seeds):
    from sklearn.datasets import load_digits

    pixels, truth = load_digits(return_X_y=True)
    (inertia, accuracy), (their_inertia, their_accuracy) = judged(
        torch.from_numpy(pixels).float(), truth.astype(np.int64), clusters, seeds
    )
    assert inertia <= 1.01 * their_inertia
    assert accuracy >= their_accuracy - 0.01
