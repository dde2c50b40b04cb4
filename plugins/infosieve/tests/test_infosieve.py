from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gcdbench_infosieve import InfoSieve, InfoSieveConfig
from gcdbench_infosieve import losses as terms
from gcdbench_infosieve.kmeans import Rows, balanced_kmeans, balanced_round, starts
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

import gcdbench
from gcdbench.contracts import Progress
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from tests.support.tiny import batch_of, tiny_task

SMALL = {"head_hidden": 16, "head_narrow": 8, "head_out": 24, "bits": 6, "code_hidden": 8}


def test_distances_and_their_gradients_at_zero():
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[3] = x[1]
    x.requires_grad_()
    found = terms.distances(x)
    torch.testing.assert_close(found, torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"))
    found.sum().backward()
    assert x.grad.isfinite().all()
    near = torch.randn(1, 65536) + 1e-4 * torch.randn(4, 65536)
    exact = torch.cdist(near.double(), near.double(), compute_mode="donot_use_mm_for_euclid_dist").float()
    torch.testing.assert_close(terms.distances(near), exact, rtol=1e-4, atol=1e-5)


def test_distances_are_divided_by_the_sums_of_the_rows_that_count():
    x, rows = torch.randn(5, 3), torch.tensor([True, False, True, True, False])
    plain = terms.distances(x)
    for along_rows, axis in ((False, 0), (True, 1)):
        found = terms.normalised_distances(x, rows, along_rows)
        sums = plain[rows].sum(0) if axis == 0 else plain[:, rows].sum(1)[:, None]
        torch.testing.assert_close(found, plain / (sums + 1e-10))


def test_lengths_are_binary_numbers():
    mask = torch.tensor([[1.0, 0, 1], [1, 1, 1]])
    assert terms.code_length(mask, mean=False).item() == pytest.approx((1 + 4) / 7 + 1)
    assert terms.code_length(mask, mean=True).item() == pytest.approx(((1 + 4) / 7 + 1) / 2)


def test_terms_and_their_weights():
    method, batch = InfoSieve(InfoSieveConfig(**SMALL), tiny_task()), batch_of()
    method.pseudo = torch.arange(12) % 5
    losses = method(batch, Progress("main", 0, 10, 0, 3))
    weights = {name: term.weight for name, term in losses.items()}
    assert weights["nce"] == weights["code_nce"] == pytest.approx(0.65)
    assert weights["supcon"] == weights["pseudo"] == weights["code_supcon"] == pytest.approx(0.175)
    assert [weights[n] for n in ("code_condition", "mask_condition", "category", "length")] == [0.01, 0.01, 0.01, 0.1]
    losses.total().backward()
    assert all(p.grad.isfinite().all() for _, p in method.trained_parameters() if p.grad is not None)


def test_clusters_never_overrule_labels():
    method, batch = InfoSieve(InfoSieveConfig(**SMALL), tiny_task()), batch_of()
    t = Progress("main", 0, 10, 0, 3)
    method.pseudo = torch.arange(12) % 5
    one = method(batch, t)["pseudo"].value
    method.pseudo = torch.where(batch.labelled, 4 - method.pseudo, method.pseudo)
    assert method(batch, t)["pseudo"].value.item() == one.item()


@st.composite
def full_clusters(draw):
    random = np.random.default_rng(draw(st.integers(0, 99)))
    clusters, rows = draw(st.integers(2, 6)), draw(st.integers(1, 40))
    labels = random.integers(clusters, size=rows)
    return labels, random.random((rows, clusters)), random.integers(-2, 12, size=clusters)


@given(full_clusters())
def test_a_round_of_balancing_by_its_definition(scene):
    labels, distance, room = scene
    counts = np.bincount(labels, minlength=len(room))
    is_open = [counts[c] < room[c] or counts[c] == 1 for c in range(len(room))]
    expected, freed = labels.copy(), []
    for c in range(len(room)):
        own = np.flatnonzero(labels == c)
        if not is_open[c] and counts[c] > room[c]:
            freed += own[np.argsort(distance[own, c])][room[c] :].tolist()
    for row in freed if any(is_open) else []:
        expected[row] = min((c for c in range(len(room)) if is_open[c]), key=lambda c: distance[row, c])
    balanced_round(labels, distance, room, clean=False)
    np.testing.assert_array_equal(labels, expected)


@given(full_clusters())
def test_a_clean_round_frees_what_does_not_fit(scene):
    labels, distance, room = scene
    before = np.bincount(labels, minlength=len(room))
    kept = labels.copy()
    balanced_round(labels, distance, room, clean=True)
    if (before < room).any():
        stayed = np.bincount(labels[labels == kept], minlength=len(room))
        assert (stayed[before >= room] <= np.maximum(room, 0)[before >= room]).all()


def clouds(classes, each, noise, seed=0):
    random = np.random.default_rng(seed)
    true = np.repeat(np.arange(classes), each)
    rows = random.normal(size=(classes, 10))[true] + noise * random.normal(size=(len(true), 10))
    return torch.from_numpy(rows).float(), true


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("size", [None, 30])
def test_clear_clusters_are_found(clean, size):
    features, true = clouds(8, 30, 0.1)
    target = np.where((true < 4) & (np.arange(len(true)) % 2 == 0), true, -1)
    rows = Rows(features, target, 8, size)
    found = balanced_kmeans(rows, torch.Generator().manual_seed(0), 10, 10, clean)
    assert adjusted_rand_score(true, found.labels) == 1
    np.testing.assert_array_equal(found.labels[target >= 0], target[target >= 0])


def test_starts_leave_out_what_they_say():
    features, true = clouds(4, 6, 0.01)
    rows = Rows(features, np.full(len(true), -1), 4, 6)
    draws = [0.1, 0.4, 0.7, 0.9]
    chosen = starts(rows, draws, clean=True)[1]
    assert len({int(true[row]) for row in chosen}) == 4  # a chosen row's neighbours are not drawn
    released = starts(rows, draws, clean=False)[1]
    assert len(set(released)) == 4


def test_settings_that_cannot_be_meant_are_refused():
    for wrong in ({"smoothing": 2.0}, {"bits": 60}, {"supcon_temp": 0}, {"restarts": 0}, {"length_weight": -1.0}):
        with pytest.raises(UsageError, match="method"):
            InfoSieveConfig(**wrong)


def test_two_blocks_are_trained_and_their_rate_is_one():
    assert InfoSieve.traits.train_from == -2
    assert math.isclose(InfoSieveConfig().sup_weight, 0.35)


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["released", "intended"])
def test_conformance(recipe):
    report = run_checks("infosieve", recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["released", "intended"])
def test_a_run_on_digits_is_better_than_chance(recipe, tmp_path):
    (record,) = gcdbench.run("infosieve", "digits", recipe=recipe, runs=tmp_path / "runs", epochs=2)
    assert record.metrics["all"] > 50
