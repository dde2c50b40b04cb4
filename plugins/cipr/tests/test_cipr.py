from __future__ import annotations

import numpy as np
import pytest
import torch
from gcdbench_cipr import CiPR, CiPRConfig
from gcdbench_cipr.class_number import class_number, scaled
from gcdbench_cipr.neighbours import Links, chained, in_order, nearest_other
from gcdbench_cipr.snc import classes_of, hierarchy, means_of
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

import gcdbench
from gcdbench.contracts import Progress, Stage
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from tests.support.tiny import batch_of, tiny_task

SMALL = {"head_hidden": 16, "head_narrow": 8, "head_out": 24}


def clouds(classes: int = 8, each: int = 20, noise: float = 0.1, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    random = np.random.default_rng(seed)
    centre = random.normal(size=(classes, 12))
    true = np.repeat(np.arange(classes), each)
    rows = centre[true] / np.linalg.norm(centre[true], axis=1, keepdims=True) + noise * random.normal(
        size=(len(true), 12)
    )
    order = random.permutation(len(true))
    return torch.from_numpy(rows[order]).float(), true[order]


@st.composite
def scenes(draw):
    features, true = clouds(
        draw(st.integers(2, 6)),
        draw(st.integers(2, 14)),
        draw(st.sampled_from([0.05, 0.5, 2.0])),
        draw(st.integers(0, 9)),
    )
    base = draw(st.integers(0, int(true.max()) + 1))
    keep = np.random.default_rng(draw(st.integers(0, 9))).random(len(true)) < draw(st.sampled_from([0.2, 0.5, 1.0]))
    return features, np.where((true < base) & keep, true, -1)


@given(scenes())
def test_no_cluster_ever_has_two_classes(scene):
    features, target = scene
    found = hierarchy(features, target)
    for labels in (*found.levels, found.cut(3), found.cut(1)):
        for cluster in np.unique(labels):
            known = target[(labels == cluster) & (target >= 0)]
            assert len(np.unique(known)) <= 1
        np.testing.assert_array_equal(labels, in_order(labels))
    assert found.counts == sorted(found.counts, reverse=True)


@given(scenes())
def test_levels_are_nested_and_the_asked_number_is_kept_where_labels_allow(scene):
    features, target = scene
    found = hierarchy(features, target)
    for finer, coarser in zip(found.levels, found.levels[1:], strict=False):
        assert len(np.unique(finer)) == len(np.unique(np.stack([finer, coarser]), axis=1).T)
    classes = len(np.unique(target[target >= 0]))
    for k in (1, 3, len(features)):
        got = int(found.cut(k).max()) + 1
        assert got == k if k >= max(2, classes) else got >= min(k, classes)


def test_chains_go_to_the_nearest_row_that_is_left():
    features, true = clouds(2, 7)
    target = np.where(true == 0, 0, -1)
    nearest = nearest_other(features)
    found = chained(nearest, features, target)
    np.testing.assert_array_equal(found[true == 1], nearest[true == 1])
    own = np.flatnonzero(true == 0)
    unit = torch.nn.functional.normalize(features, dim=1).numpy()
    for group in (own[:3], own[3:6], own[6:]):  # groups of the square root of seven, rounded up
        left, here = list(group[1:]), group[0]
        while left:
            best = max(left, key=lambda row, at=here: unit[at] @ unit[row])
            assert found[here] == best
            left.remove(best)
            here = best
        assert found[here] == here


def test_links_by_the_definition():
    features, _ = clouds(3, 6, 0.5)
    neighbour = nearest_other(features)
    neighbour[4] = 4
    matrix = np.zeros((18, 18))
    matrix[np.arange(18), neighbour] += 1
    matrix += np.eye(18)
    weight = np.triu(matrix @ matrix.T, 1)
    links = Links.of(neighbour, features)
    found = np.zeros((18, 18))
    found[links.first, links.second] = links.weight
    np.testing.assert_array_equal(found, weight)
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    np.testing.assert_allclose(links.distance, (1 - unit @ unit.T).numpy()[links.first, links.second], atol=1e-12)


def test_similarities_in_blocks_are_the_same(monkeypatch):
    features, _ = clouds(6, 30)
    whole = nearest_other(features)
    monkeypatch.setattr("gcdbench_cipr.neighbours.BLOCK_BYTES", 4 * 180 * 7)
    np.testing.assert_array_equal(nearest_other(features), whole)


def merging_by_definition(features, target, labels):
    """Everything computed again for every join."""
    while True:
        labels = in_order(labels)
        if labels.max() == 0:
            return
        rows, classes = means_of(features, labels), classes_of(labels, target)
        links = Links.of(chained(nearest_other(rows), rows, classes), rows)
        if not len(links.first):
            return
        best = links.distance.argmin()
        labels = np.where(labels == links.second[best], links.first[best], labels)
        yield in_order(labels)


@given(scenes())
def test_joins_are_those_of_the_definition(scene):
    features, target = scene
    found = hierarchy(features, target)
    ours = list(found.joined(found.levels[0], 1))
    for mine, expected in zip(ours, merging_by_definition(features, target, found.levels[0]), strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_single_rows_of_a_large_set_are_refused(monkeypatch):
    features, true = clouds(4, 30)
    monkeypatch.setattr("gcdbench_cipr.snc.LARGEST", 50)
    with pytest.raises(UsageError, match="finest partition"):
        hierarchy(features, np.full(len(true), -1)).cut(len(true))


def test_the_range_does_not_move_the_best_number():
    features, true = clouds(12, 40, 0.4)
    target = np.where((true < 6) & (np.arange(len(true)) % 2 == 0), true, -1)
    free = class_number(features, target, 6, (1, 480))
    bound = class_number(features, target, 6, (free.k - 1, free.k + 1))
    assert bound.tried == free.tried
    assert bound.k == free.k


def test_the_estimator_clusters_cls_as_it_is(monkeypatch):
    from gcdbench_cipr import NeighbourSearch

    tokens = torch.randn(60, 5, 24, generator=torch.Generator().manual_seed(3))
    seen = []

    class FewRows:
        target = np.where(np.arange(60) < 30, np.arange(60) % 3, -1)

        @torch.no_grad()
        def features(self, embed, views="test"):
            return embed(tokens)

        def once(self, action):
            return action()

    def watched(features, *arguments):
        seen.append(features)
        return class_number(features, *arguments)

    monkeypatch.setattr("gcdbench_cipr.estimator.class_number", watched)
    task = tiny_task()
    assert 3 <= NeighbourSearch().estimate(FewRows(), task, 9).k <= 9
    torch.testing.assert_close(seen[0], task.backbone.tail(norm=True).eval()(tokens)[:, 0].detach())


def test_clear_clusters_are_found_and_counted():
    features, true = clouds(12, 40, 0.05)
    target = np.where((true < 6) & (np.arange(len(true)) % 2 == 0), true, -1)
    assert adjusted_rand_score(true, hierarchy(features, target).cut(12)) == 1
    assert class_number(features, target, 6, (6, 100)).k == 12
    assert class_number(features, target, 6, (6, 9)).k <= 9
    assert class_number(features, target, 6, (13, 100)).k >= 13


def test_scores_are_scaled_over_the_partitions():
    np.testing.assert_allclose(scaled(np.array([1.0, 3.0, 2.0])), [0, 1, 0.5])
    np.testing.assert_array_equal(scaled(np.array([2.0, 2.0])), [1, 1])


def test_means_are_plain():
    rows = torch.tensor([[1.0, 0], [3, 0], [0, 5]])
    np.testing.assert_allclose(means_of(rows, np.array([0, 0, 1])).numpy(), [[2, 0], [0, 5]])


class Pool:
    """Rows under numbers of their own."""

    index = np.array([3, 0, 2, 1])
    target = np.array([0, -1, -1, 1])

    def features(self, embed, views="test"):
        return torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1]])

    def once(self, action):
        return action()


def test_clusters_go_by_row_number_and_survive_a_checkpoint():
    method = CiPR(CiPRConfig(**SMALL), tiny_task())
    method.on_epoch_start(Pool(), Progress("main", 0, 3, 0, 3))
    by_row = dict(zip(Pool.index.tolist(), [0, 0, 1, 1], strict=True))
    assert method.pseudo.tolist() == [by_row[row] for row in range(4)]
    twin = CiPR(CiPRConfig(**SMALL), tiny_task())
    twin.load_state_dict(method.state_dict())
    assert torch.equal(twin.pseudo, method.pseudo)


def test_terms_and_rates():
    method, batch = CiPR(CiPRConfig(**SMALL), tiny_task()), batch_of()
    t = Progress("main", 0, 10, 0, 3)
    assert set(method(batch, t)) == {"supcon", "self"}  # nothing is clustered yet
    method.pseudo = torch.arange(12) % 4
    losses = method(batch, t)
    assert {name: term.weight for name, term in losses.items()} == {"supcon": 1.0, "pseudo": pytest.approx(12 / 7)}
    warm = CiPR(CiPRConfig(**SMALL, warmup_epochs=1), tiny_task())
    warm.pseudo = method.pseudo
    assert set(warm(batch, t)) == {"supcon", "self"}
    groups = method.optimizers(Stage("main", 10))["main"].optimizer.param_groups
    assert [g["lr"] for g in groups] == [method.task.train.lr, 0.1]
    assert {g["weight_decay"] for g in groups} == {method.task.train.weight_decay}


def test_settings_that_cannot_be_meant_are_refused():
    for wrong in ({"pseudo_temp": 0}, {"partition": -1}, {"head_out": 0}):
        with pytest.raises(UsageError, match="method"):
            CiPRConfig(**wrong)
    with pytest.raises(UsageError, match="base classes already"):
        CiPR(CiPRConfig(**SMALL, find_k=True, largest_k=2), tiny_task())


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["released", "unknown-k"])
def test_conformance(recipe):
    report = run_checks("cipr", recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["released", "unknown-k"])
def test_a_run_on_digits_is_better_than_chance(recipe, tmp_path):
    (record,) = gcdbench.run("cipr", "digits", recipe=recipe, runs=tmp_path / "runs", epochs=2)
    assert record.metrics["all"] > 50
    assert record.protocol["k_source"] == ("true" if recipe == "released" else "method")


def test_the_number_of_classes_of_digits(tmp_path):
    (record,) = gcdbench.run("kmeans", "digits", runs=tmp_path / "runs", k="cipr")
    assert 5 <= record.k_estimate["k"] <= 20
    assert record.k_estimate["estimator"] == "cipr"
