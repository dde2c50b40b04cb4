"""k-means and semi-supervised k-means, all restarts at once, on any device.

Distances are one matrix product per block of rows for all restarts together. Nothing depends on the device but
rounding: random numbers are drawn on the host, sums are taken in a fixed order, ties go to the smaller number.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.errors import UsageError

BLOCK_BYTES = 64 << 20
"""Largest table of distances that is in memory at a time."""

Watch = Callable[[int, int], None]
"""Told the number of iterations done and their largest number."""


@dataclass(frozen=True)
class Clusters:
    """The best of all restarts."""

    labels: Tensor
    """(rows,) cluster of each row; a labelled row's is its class."""
    centres: Tensor
    """(clusters, dim) float32."""
    inertia: float
    """Sum of squared distances of all rows to their centre."""
    iterations: int
    """Iterations until the best restart stood still, or the limit."""


def kmeans(
    features: Tensor,
    clusters: int,
    generator: torch.Generator,
    *,
    restarts: int = 10,
    iterations: int = 100,
    tolerance: float = 1e-4,
    watch: Watch | None = None,
) -> Clusters:
    """k-means with greedy k-means++ starts: of 2 + ⌊ln K⌋ candidates for each centre, the best is kept."""
    hidden = torch.full((len(features),), -1)
    return semi_supervised_kmeans(
        features,
        hidden,
        clusters,
        generator,
        restarts=restarts,
        iterations=iterations,
        tolerance=tolerance,
        watch=watch,
    )


@torch.no_grad()
def semi_supervised_kmeans(  # noqa: PLR0913  # the usual interface of k-means: every number is an option
    features: Tensor,
    targets: Tensor,
    clusters: int,
    generator: torch.Generator,
    *,
    restarts: int = 10,
    iterations: int = 100,
    tolerance: float = 1e-4,
    watch: Watch | None = None,
) -> Clusters:
    """k-means in which labelled rows always belong to the cluster of their class.

    ``targets`` has the class of each labelled row (0..classes-1) and -1 elsewhere. The first centres are the means of
    the classes; the others are drawn by k-means++ among the unlabelled rows (greedily if no row is labelled). A cluster
    that loses all its rows keeps its centre. ``generator`` lives on the host. A restart ends when its centres move by
    less than ``tolerance`` (sum of squared distances, relative to the features' variance), at the latest after
    ``iterations``.
    """
    targets = torch.as_tensor(targets)
    data = _checked(features, targets, clusters, restarts, iterations)
    targets = targets.to(data.device).long()
    # Distances do not depend on the origin, but their rounding does: it belongs into the middle of the rows.
    middle = data.mean(0, dtype=_exact(data.device)).float()
    data = data - middle
    if not (data**2).sum(1).isfinite().all():
        raise UsageError("k-means was given features whose squared distances are too large for float32.")
    classes = int(targets.max()) + 1 if len(targets) else 0
    centres = _starts(data, targets, classes, clusters, restarts, generator)
    shift = tolerance * float(data.var(0, unbiased=False).mean())
    found: list[Clusters | None] = [None] * restarts
    active = list(range(restarts))
    known = targets >= 0
    for iteration in range(1, iterations + 1):
        labels, inertia = _assign(data, centres, targets, known)
        moved = torch.stack([cluster_means(data, own, old) for own, old in zip(labels, centres, strict=True)])
        still = ((moved - centres) ** 2).sum((1, 2)) <= shift
        centres = moved
        if watch is not None:
            watch(iteration, iterations)
        # One look per iteration at which restarts stand still; they take no further part.
        over = still.tolist() if iteration < iterations else [True] * len(active)
        if any(over):
            labels, inertia = _assign(data, centres, targets, known)
            for place, done in enumerate(over):
                if done:
                    own = Clusters(labels[place], centres[place], float(inertia[place]), iteration)
                    found[active[place]] = own
            keep = [place for place, done in enumerate(over) if not done]
            active, centres = [active[place] for place in keep], centres[keep]
        if not active:
            break
    best = min((c for c in found if c is not None), key=lambda c: c.inertia)
    return dataclasses.replace(best, centres=best.centres + middle)


def _exact(device: torch.device) -> torch.dtype:
    """The type of sums over many rows: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _checked(features: Tensor, targets: Tensor, clusters: int, restarts: int, iterations: int) -> Tensor:
    if features.ndim != 2 or 0 in features.shape or len(features) != len(targets) or targets.is_floating_point():
        raise UsageError(
            f"k-means takes rows of features and a whole number for each, not features of shape "
            f"{tuple(features.shape)} and targets of shape {tuple(targets.shape)} and type {targets.dtype}."
        )
    if min(restarts, iterations, clusters) < 1:
        raise UsageError("k-means needs at least one cluster, one restart and one iteration.")
    data = features.detach().float()
    if not data.isfinite().all():
        raise UsageError("k-means was given features that are not finite.")
    classes = targets.unique()
    classes = classes[classes >= 0]
    if len(classes) and (int(classes[-1]) + 1 != len(classes) or len(classes) > clusters):
        raise UsageError(
            f"k-means was asked for {clusters} clusters; the labelled classes must be numbered 0 to at most "
            f"{clusters - 1} without a gap, but there are {len(classes)} up to {int(classes[-1])}."
        )
    if clusters - len(classes) > int((targets < 0).sum()):
        raise UsageError(
            f"k-means was asked for {clusters} clusters, but {len(classes)} classes and "
            f"{int((targets < 0).sum())} other rows cannot fill them."
        )
    return data


def _starts(
    data: Tensor, targets: Tensor, classes: int, clusters: int, restarts: int, generator: torch.Generator
) -> Tensor:
    """(restarts, clusters, dim): class means, then k-means++ among the unlabelled rows, for all restarts at once.

    Without labels it is the greedy form, which the libraries behind published k-means numbers have: 2 + ⌊ln K⌋
    candidates for each centre, of which the one that leaves the smallest sum of distances is taken. Published
    semi-supervised k-means draws one.
    """
    rows = data[targets < 0]
    means = cluster_means(data[targets >= 0], targets[targets >= 0], data.new_zeros((classes, data.shape[1])))
    centres = data.new_empty((restarts, clusters, data.shape[1]))
    centres[:, :classes] = means
    if classes == clusters:
        return centres
    squares = (rows**2).sum(1)
    if classes:
        nearest = torch.cat([_distances(rows[i], squares[i], means).amin(1) for i in _blocks(len(rows), classes)])
        nearest = nearest.expand(restarts, -1).clone()
    else:
        nearest = data.new_ones((restarts, len(rows)))  # the first centre is any row
    tries = 1 if classes else 2 + int(math.log(clusters))
    draws = torch.rand((clusters - classes, restarts, tries), generator=generator, dtype=_exact(data.device))
    for number, draw in enumerate(draws, classes):
        candidates = rows[_weighted(nearest, draw[:, :1] if number == 0 else draw)]
        chosen = _best_candidates(rows, squares, candidates, nearest)
        centres[:, number] = chosen
        distance = _distances(rows, squares, chosen).T
        nearest = distance if number == 0 else torch.minimum(nearest, distance)
    return centres


def _best_candidates(rows: Tensor, squares: Tensor, candidates: Tensor, nearest: Tensor) -> Tensor:
    """(restarts, dim): of each restart's (tries, dim) candidates, the one that leaves rows nearest to a centre."""
    restarts, tries, dim = candidates.shape
    if tries == 1:
        return candidates[:, 0]
    flat = candidates.reshape(-1, dim)
    lengths = (flat**2).sum(1)
    left = torch.zeros((restarts, tries), dtype=_exact(rows.device), device=rows.device)
    for block in _blocks(len(rows), len(flat)):
        distance = torch.addmm(lengths[:, None] + squares[block], flat, rows[block].T, alpha=-2).clamp_(min=0)
        distance = distance.view(restarts, tries, -1)
        left += torch.minimum(distance, nearest[:, None, block]).sum(2)
    return candidates[torch.arange(restarts, device=rows.device), left.argmin(1)]


def _weighted(weights: Tensor, draws: Tensor) -> Tensor:
    """(restarts, draws) rows of each restart, drawn in proportion to its weights; the last one if all are zero."""
    total = weights.to(draws.dtype).cumsum(1)
    place = torch.searchsorted(total, draws.to(total.device) * total[:, -1:], right=True)
    return place.clamp(max=weights.shape[1] - 1)


def _distances(rows: Tensor, squares: Tensor, centres: Tensor) -> Tensor:
    """(rows, centres) squared distances by one matrix product, never negative."""
    return torch.addmm(squares[:, None] + (centres**2).sum(1), rows, centres.T, alpha=-2).clamp_(min=0)


def _blocks(rows: int, columns: int) -> list[slice]:
    """Slices of the rows whose table of distances stays within the limit."""
    size = max(1, BLOCK_BYTES // (4 * max(1, columns)))
    return [slice(start, start + size) for start in range(0, rows, size)]


def _assign(data: Tensor, centres: Tensor, targets: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """(restarts, rows) nearest cluster, or the class of labelled rows; (restarts,) inertia."""
    restarts, clusters, dim = centres.shape
    flat = centres.reshape(-1, dim)
    squares = (data**2).sum(1)
    labels, inertia = [], torch.zeros(restarts, dtype=_exact(data.device), device=data.device)
    for block in _blocks(len(data), restarts * clusters):
        distance = _distances(data[block], squares[block], flat).view(-1, restarts, clusters)
        best, number = distance.min(2)
        own = targets[block].clamp(min=0)[:, None, None].expand(-1, restarts, 1)
        fixed = known[block, None]
        labels.append(torch.where(fixed, own[:, :, 0], number))
        inertia += torch.where(fixed, distance.gather(2, own)[:, :, 0], best).sum(0, dtype=inertia.dtype)
    return torch.cat(labels).T, inertia


def cluster_means(data: Tensor, labels: Tensor, before: Tensor) -> Tensor:
    """Mean of the rows of each cluster; an empty cluster stays where it was."""
    clusters = len(before)
    counts = torch.bincount(labels, minlength=clusters)[:, None]
    if data.device.type == "cpu":
        sums = torch.zeros_like(before).index_add_(0, labels, data)
    else:  # atomic additions would come in any order; a product has one
        sums = torch.zeros_like(before)
        for block in _blocks(len(data), clusters):
            sums += F.one_hot(labels[block], clusters).to(data.dtype).T @ data[block]
    return torch.where(counts > 0, sums / counts.clamp(min=1), before)
