from __future__ import annotations

import numpy as np
import pytest
import torch
from gcdbench_gpc import GPC, GPCConfig
from gcdbench_gpc.niw import Prior
from gcdbench_gpc.prototypes import (
    Clustering,
    Rules,
    by_two_means,
    densities,
    guarded,
    prototype_loss,
    prototypes,
    split_and_merge,
)
from gcdbench_gpc.search import Search, one_round, within
from gcdbench_gpc.space import Space
from scipy.special import multigammaln

import gcdbench
from gcdbench.contracts import Progress
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from tests.support.tiny import batch_of, tiny_task

SMALL = {"head_hidden": 16, "head_narrow": 8, "head_out": 12, "restarts": 2}
RULES = Rules(clean_merges=True, accept=0.0, min_rows=5)


def clouds(classes, each, noise=0.05, dim=8, seed=0):
    random = np.random.default_rng(seed)
    true = np.repeat(np.arange(classes), each)
    centres = random.normal(size=(classes, dim))
    rows = centres[true] / np.linalg.norm(centres[true], axis=1, keepdims=True) + noise * random.normal(
        size=(len(true), dim)
    )
    return rows, true


@pytest.mark.parametrize(("rows", "dim"), [(12, 5), (4, 30)])
def test_the_marginal_is_the_textbook_formula_for_few_and_many_rows(rows, dim):
    random = np.random.default_rng(0)
    x, prior = random.normal(size=(rows, dim)), Prior(random.normal(size=dim), 0.3, 0.2)
    centre = x.mean(0)
    kappa, nu = prior.kappa + rows, prior.nu + rows
    psi = prior.scale * np.eye(dim) + (x - centre).T @ (x - centre)
    shift = centre - prior.mean
    psi += prior.kappa * rows / kappa * np.outer(shift, shift)
    expected = (
        -rows * dim / 2 * np.log(np.pi)
        + multigammaln(nu / 2, dim)
        - multigammaln(prior.nu / 2, dim)
        + prior.nu / 2 * np.linalg.slogdet(prior.scale * np.eye(dim))[1]
        - nu / 2 * np.linalg.slogdet(psi)[1]
        + dim / 2 * (np.log(prior.kappa) - np.log(kappa))
    )
    assert prior.log_marginal(x, centre) == pytest.approx(expected, rel=1e-9)


def test_two_clouds_are_split_and_halves_of_one_are_merged():
    rows, true = clouds(2, 40)
    labels = np.zeros(len(rows), dtype=np.int64)
    one = Clustering(rows, labels, rows.mean(0)[None], 0)
    halves = by_two_means(torch.Generator().manual_seed(0), 5)
    centres, done = split_and_merge(one, Prior(rows.mean(0)), halves, iter(()), Rules(True, -1.0, 5))
    assert done.split == {0: True}
    assert len(centres) == 2
    torn = np.where(true == 0, np.arange(len(rows)) % 2, 2)
    means = np.stack([rows[torn == c].mean(0) for c in range(3)])
    found = Clustering(rows, torn, means, 0)
    coins = iter([1.0] * 9)
    centres, done = split_and_merge(found, Prior(rows.mean(0)), halves, coins, RULES)
    assert len(centres) == 2
    np.testing.assert_allclose(centres[-1], rows[true == 0].mean(0))  # one cluster, the mean of its rows


def test_released_merges_add_a_prototype_and_clean_ones_take_one_away():
    rows, _ = clouds(1, 60)
    torn = np.arange(len(rows)) % 2
    means = np.stack([rows[torn == c].mean(0) for c in range(2)])
    found = Clustering(rows, torn, means, 0)
    halves = by_two_means(torch.Generator().manual_seed(0), 5)

    def count(clean):
        rules = Rules(clean, 0.0, 60)  # nothing is split
        return len(split_and_merge(found, Prior(rows.mean(0)), halves, iter([1.0] * 9), rules)[0])

    assert (count(True), count(False)) == (1, 4)  # as released the pair is tested, and merged, from both sides


def test_base_clusters_are_left_alone():
    rows, true = clouds(4, 30)
    merged = np.where(true == 3, 2, true)
    means = np.stack([rows[merged == c].mean(0) for c in range(3)])
    halves = by_two_means(torch.Generator().manual_seed(0), 5)
    centres, done = split_and_merge(
        Clustering(rows, merged, means, 3), Prior(rows.mean(0)), halves, iter([1.0] * 9), RULES
    )
    assert not done.split
    np.testing.assert_array_equal(centres, means)


def test_densities_by_their_definition_and_no_prototype_divides_by_zero():
    sums, counts = torch.tensor([4.0, 9.0, 0.5, 0.0]), torch.tensor([4, 6, 1, 0])
    raw = [4 / 4 / np.log(14), 9 / 6 / np.log(16)]
    raw = np.array([*raw, max(raw), 0.0])
    clipped = raw.clip(*np.percentile(raw, [10, 90]))
    np.testing.assert_allclose(densities(sums, counts, 2.0), 2 * clipped / clipped.mean(), rtol=1e-6)
    density = guarded(torch.tensor([0.0, 0.5, 2.0, 0.0]))
    assert density.tolist() == [0.5, 0.5, 2.0, 0.5]
    assert guarded(torch.zeros(3)).tolist() == [1, 1, 1]
    many_empty = densities(torch.tensor([1.0, *[0.0] * 9]), torch.tensor([3, *[0] * 9]), 1.0)
    loss = prototype_loss(torch.randn(8, 5), torch.eye(10, 5), guarded(many_empty), torch.zeros(4, dtype=torch.long))
    assert loss.isfinite()


def test_labelled_rows_belong_to_their_class():
    rows, true = clouds(3, 10)
    target = np.where(np.arange(30) % 2 == 0, true, -1)
    far = torch.from_numpy(np.roll(np.stack([rows[true == c].mean(0) for c in range(3)]), 1, axis=0))
    made = prototypes(torch.from_numpy(rows), target, far, 1.0)
    np.testing.assert_array_equal(made.assignment.numpy()[target >= 0], target[target >= 0])
    np.testing.assert_array_equal(made.assignment.numpy()[target < 0], (true[target < 0] + 1) % 3)


def test_the_space_is_a_pca():
    rows = torch.from_numpy(clouds(5, 40, 0.3)[0])
    space = Space.of(rows, 3)
    found = space(rows).numpy()
    u, s, _ = np.linalg.svd(rows.numpy() - rows.numpy().mean(0), full_matrices=False)
    np.testing.assert_allclose(np.abs(found), np.abs(u[:, :3] * s[:3]), atol=1e-8)
    assert Space.of(rows, 0)(rows) is rows
    assert Space.of(rows, 8)(rows) is rows


def test_rounds_find_clear_clusters_from_too_few_and_too_many():
    rows, true = clouds(12, 40, 0.03)
    target = np.where((true < 4) & (np.arange(len(true)) % 2 == 0), true, -1)
    search = Search(RULES, 0.005, 5, 50)
    for start in (6, 20):
        k = start
        for _ in range(8):
            k = len(one_round(torch.from_numpy(rows).float(), target, k, torch.Generator().manual_seed(1), search))
        assert 11 <= k <= 13, (start, k)


def test_a_number_that_the_rows_can_fill():
    target = np.array([0, 1, -1, -1, -1])
    assert [within(k, target, 2, 100) for k in (0, 3, 50)] == [2, 3, 5]
    assert within(4, target, 2, 3) == 3


def test_state_is_kept_and_shapes_may_change():
    method = GPC(GPCConfig(**SMALL), tiny_task())
    assert method.clusters == 4  # 1.5 times three, rounded to even
    state = dict.fromkeys(("mean", "components")) | {
        "centres": torch.eye(6, 24),
        "density": torch.ones(6),
        "assignment": torch.arange(12) % 6,
    }
    method._keep(state)
    method.clusters = 6
    twin = GPC(GPCConfig(**SMALL), tiny_task())
    twin.load_state_dict(method.state_dict())
    assert twin.clusters == 6
    assert torch.equal(twin.kept["centres"], state["centres"])
    t = Progress("main", 3, 10, 0, 3)
    losses = twin(batch_of(), t)
    assert set(losses) == {"info_nce", "supcon", "prototypes"}
    assert set(GPC(GPCConfig(**SMALL), tiny_task())(batch_of(), t)) == {"info_nce", "supcon"}


def test_settings_that_cannot_be_meant_are_refused():
    for wrong in ({"proto_temp": 0}, {"accept": 2.0}, {"dims": -1}, {"answer": "oracle"}, {"restarts": 0}):
        with pytest.raises(UsageError, match="method"):
            GPCConfig(**wrong)
    with pytest.raises(UsageError, match="base classes already"):
        GPC(GPCConfig(**SMALL, largest_k=2), tiny_task())


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_conformance(recipe):
    report = run_checks("gpc", recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_a_run_on_digits_is_better_than_chance(recipe, tmp_path):
    (record,) = gcdbench.run("gpc", "digits", recipe=recipe, runs=tmp_path / "runs", epochs=3)
    assert record.metrics["all"] > 50
    assert record.protocol["k_source"] == ("method" if recipe == "paper" else "true")


def test_the_number_of_classes_of_digits(tmp_path):
    (record,) = gcdbench.run("kmeans", "digits", runs=tmp_path / "runs", k="gpc")
    assert 5 <= record.k_estimate["k"] <= 20
