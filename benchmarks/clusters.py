"""Semi-supervised k-means against the public shape, k-means against scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import torch

from benchmarks.figure import Claim, Figure, Growth, faster, seconds
from benchmarks.reference import public_kmeans
from benchmarks.scene import Scene
from benchmarks.steps import Found
from gcdbench.toolbox import kmeans as clustering

DIM, K, RESTARTS, ITERATIONS = 768, 200, 10, 3


def blobs(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Overlapping groups; half of the rows of the first half of them are labelled."""
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(K, DIM, generator=random)
    truth = torch.arange(rows) % K
    labelled = (truth < K // 2) & (torch.arange(rows) // K % 2 == 0)
    return centres[truth] + 4 * torch.randn(rows, DIM, generator=random), torch.where(labelled, truth, -1)


def kmeans(scene: Scene) -> Iterator[Found]:
    """All restarts at once, starts included, against restart after restart of the iterations alone."""
    data, targets = blobs(scene.sizes.rows)
    starts = clustering._starts(data, targets, K // 2, K, 1, torch.Generator().manual_seed(1))
    labels, centres = public_kmeans(data, targets, starts[0], ITERATIONS)

    def ours(restarts: int = RESTARTS, rows: int = len(data)) -> clustering.Clusters:
        random = torch.Generator().manual_seed(1)
        return clustering.semi_supervised_kmeans(
            data[:rows], targets[:rows], K, random, restarts=restarts, iterations=ITERATIONS, tolerance=0
        )

    found = ours(restarts=1)
    inertia = float(((data - centres[labels]) ** 2).sum(dtype=torch.float64))
    agree = float((found.labels == labels).float().mean())
    same = abs(found.inertia - inertia) < 1e-4 * inertia and agree > 0.999
    yield Claim("k-means gives the clusters of the public shape from the same start", same, f"{100 * agree:.2f} %")
    # One restart is measured and counted ten times: all of them do the same work.
    value, detail = faster(lambda: public_kmeans(data, targets, starts[0], ITERATIONS), ours, 1, times=RESTARTS)
    shape = f"{len(data):,} x {DIM}, K = {K}, {RESTARTS} restarts"
    yield Figure(f"semi-supervised k-means, {shape}", value, 8.0, detail=detail)
    value, detail = _against_scikit_learn(data)
    yield Figure(f"k-means against scikit-learn, {shape}", value, 2.0, detail=detail)
    counts = tuple(len(data) // n for n in (4, 2, 1))
    costs = tuple(min(seconds(lambda n=n: ours(rows=n)) for _ in range(2)) for n in counts)  # type: ignore[misc]
    yield Growth("k-means by number of rows", counts, costs)


def concepts(scene: Scene) -> Iterator[Found]:
    """The graph and the search of a K estimator that finds communities, by number of rows."""
    from gcdbench import registry

    plugin = next((p for p in registry.plugins("k-estimator") if p.name == scene.subjects.communities), None)
    if plugin is None:
        return
    estimator, task = plugin.load()(), SimpleNamespace(num_base=K // 2, backbone=SimpleNamespace(tail=_no_tail))
    counts = tuple(min(scene.sizes.rows, 6000) // n for n in (4, 2, 1))
    costs = []
    for rows in counts:
        data, targets = blobs(rows)
        pool = SimpleNamespace(
            target=targets.numpy(),
            features=lambda embed, data=data: torch.nn.functional.normalize(data, dim=1),
            once=lambda action: action(),
            generator=lambda: torch.Generator().manual_seed(0),
        )
        costs.append(seconds(lambda pool=pool, rows=rows: estimator.estimate(pool, task, rows)))  # type: ignore[misc]
    yield Growth(f"communities of rows ({plugin.name}), {DIM} numbers each", counts, tuple(costs))


def _no_tail(**_: object) -> torch.nn.Module:
    return torch.nn.Identity()


def _against_scikit_learn(data: torch.Tensor) -> tuple[float, str]:
    """Greedy starts and some iterations of all restarts."""
    from sklearn.cluster import KMeans

    theirs = KMeans(K, n_init=RESTARTS, max_iter=ITERATIONS, tol=0, random_state=1)

    def ours() -> None:
        random = torch.Generator().manual_seed(1)
        clustering.kmeans(data, K, random, restarts=RESTARTS, iterations=ITERATIONS, tolerance=0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that so few iterations are not enough to converge
        return faster(lambda: theirs.fit(data.numpy()), ours, 1)
