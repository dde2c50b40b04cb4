from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gcdbench_dccl import DCCL, DCCLConfig
from gcdbench_dccl.concepts import (
    Shares,
    centres,
    concept_loss,
    concepts_of,
    find_concepts,
    moved_memory,
    without_small,
)
from gcdbench_dccl.graph import Graph, links, nearest_rows
from gcdbench_dccl.map_equation import Flow, code_length, communities
from gcdbench_dccl.method import WarmupThenCosine
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

import gcdbench
from gcdbench.config.sections import TrainConfig
from gcdbench.contracts import Batch, Progress
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from tests.support.tiny import batch_of, tiny_task

SMALL = {"head_hidden": 16, "head_narrow": 8, "head_out": 24}


@st.composite
def graphs(draw):
    random = np.random.default_rng(draw(st.integers(0, 200)))
    rows, count = draw(st.integers(2, 14)), draw(st.integers(1, 40))
    source, target = random.integers(rows, size=count), random.integers(rows, size=count)
    apart = source != target
    return Graph(rows, source[apart], target[apart], random.random(apart.sum()) + 0.1), random


def by_definition(graph, module):
    """Visit rates by solving for the eigenvector, the code length by loops."""
    n = graph.rows
    w = np.zeros((n, n))
    np.add.at(w, (graph.source, graph.target), graph.weight)
    out = w.sum(1)
    jump = out / out.sum()
    walk = np.where(out[:, None] > 0, 0.85 * w / np.maximum(out, 1e-300)[:, None] + 0.15 * jump, jump)
    p = np.linalg.matrix_power(walk, 2**14)[0]
    flow = np.where(out[:, None] > 0, p[:, None] * w / np.maximum(out, 1e-300)[:, None], 0)
    flow /= flow.sum()
    h = lambda x: x * np.log2(x) if x > 0 else 0.0  # noqa: E731
    row = flow.sum(0)
    enter, leave, inside = {}, {}, {}
    for m in set(module.tolist()):
        own = module == m
        enter[m], leave[m], inside[m] = flow[np.ix_(~own, own)].sum(), flow[np.ix_(own, ~own)].sum(), row[own].sum()
    return (
        h(sum(enter.values()))
        - sum(map(h, enter.values()))
        - sum(map(h, leave.values()))
        + sum(h(leave[m] + inside[m]) for m in enter)
        - sum(map(h, row))
    )


@settings(deadline=None)
@given(graphs())
def test_the_code_length_is_that_of_the_definition(scene):
    graph, random = scene
    if not len(graph.weight):
        return
    module = np.unique(random.integers(3, size=graph.rows), return_inverse=True)[1]
    assert code_length(Flow.of(graph), module) == pytest.approx(by_definition(graph, module), abs=1e-9)


@settings(deadline=None)
@given(graphs())
def test_the_search_never_makes_the_code_longer_and_no_single_move_shortens_it(scene):
    graph, _ = scene
    if not len(graph.weight):
        return
    flow = Flow.of(graph)
    found = communities(flow, torch.Generator().manual_seed(0))
    bits = code_length(flow, found)
    assert bits <= code_length(flow, np.arange(graph.rows)) + 1e-9
    for row in range(graph.rows):
        for module in range(found.max() + 1):
            other = found.copy()
            other[row] = module
            other = np.unique(other, return_inverse=True)[1]
            linked = ((graph.source == row) & (found[graph.target] == module)).any() or (
                (graph.target == row) & (found[graph.source] == module)
            ).any()
            assert not linked or code_length(flow, other) >= bits - 1e-9


def clouds(classes, each, noise=0.15, seed=0):
    random = np.random.default_rng(seed)
    true = np.repeat(np.arange(classes), each)
    rows = random.normal(size=(classes, 16))[true] + noise * random.normal(size=(len(true), 16))
    order = random.permutation(len(true))
    return torch.from_numpy(rows[order]).float(), true[order]


def test_clear_clusters_are_concepts():
    features, true = clouds(9, 40)
    found = find_concepts(features, np.full(len(true), -1), DCCLConfig(), torch.Generator().manual_seed(0))
    assert adjusted_rand_score(true, found) == 1
    again = find_concepts(
        features, np.full(len(true), -1), DCCLConfig(), torch.Generator().manual_seed(0), before=found
    )
    assert adjusted_rand_score(found, again) == 1


@pytest.mark.parametrize("start", ["pairs of clusters", "one"])
def test_a_warm_start_parts_what_should_be_apart(start):
    features, true = clouds(10, 30)
    graph = links(*nearest_rows(features, 15), np.full(len(true), -1), 0.6, "none")
    flow = Flow.of(graph)
    cold, warm = (
        communities(flow, torch.Generator().manual_seed(0), begin)
        for begin in (None, true // 2 if start == "pairs of clusters" else np.zeros(len(true), dtype=np.int64))
    )
    assert adjusted_rand_score(true, cold) == adjusted_rand_score(true, warm) == 1
    assert code_length(flow, warm) == pytest.approx(code_length(flow, cold), abs=1e-9)


def test_steps_in_double_precision():
    method, batch = DCCL(DCCLConfig(**SMALL, smallest_concept=1), tiny_task()).double(), batch_of()
    tokens = batch.tokens.double()
    own = torch.arange(12) % 4
    features = method.tail(tokens)[:12, 0].detach()
    method.kept = {"concept": own, "memory": centres(features, own), "sizes": torch.bincount(own)}
    method.shares = Shares(6, 6)
    losses = method(Batch(tokens, batch.target, batch.labelled, batch.index), Progress("main", 0, 2, 0, 3))
    assert losses["concept"].value.dtype == torch.float64
    method.on_step_end(batch, Progress("main", 0, 2, 0, 3))
    assert method.kept["memory"].dtype == torch.float64


def test_other_samplers_are_refused():
    with pytest.raises(UsageError, match="balanced"):
        DCCL(DCCLConfig(**SMALL), tiny_task(train=TrainConfig(sampler="paired")))


def test_labels_strengthen_links_of_their_class_only():
    features, true = clouds(4, 10)
    target = np.where(np.arange(len(true)) % 2 == 0, true, -1)
    neighbour, distance = nearest_rows(features, 8)
    plain, pairs = (links(neighbour, distance, target, 0.3, rule) for rule in ("none", "pairs"))
    same = (target[plain.source] >= 0) & (target[plain.source] == target[plain.target])
    assert same.any()
    np.testing.assert_array_equal(plain.weight[~same], pairs.weight[~same])
    np.testing.assert_allclose(pairs.weight[same], 1 - distance[plain.source[same], 1])


def test_the_released_rule_does_not_read_hidden_labels():
    features, true = clouds(4, 10)
    target = np.where((true < 2) & (np.arange(len(true)) % 2 == 0), true, -1)
    neighbour, distance = nearest_rows(features, 8)
    found = links(neighbour, distance, target, 0.3, "ranks")
    changed = found.weight != links(neighbour, distance, target, 0.3, "none").weight
    assert (target[found.source[changed]] >= 0).all()


def test_neighbours_in_blocks_are_the_same(monkeypatch):
    features, _ = clouds(5, 12)
    whole = nearest_rows(features, 6)
    monkeypatch.setattr("gcdbench_dccl.graph.BLOCK_BYTES", 4 * 60 * 7)
    parts = nearest_rows(features, 6)
    np.testing.assert_array_equal(whole[0], parts[0])
    np.testing.assert_allclose(whole[1], parts[1], atol=1e-6)


def test_rows_without_links_belong_nowhere():
    graph = Graph(5, np.array([0, 1]), np.array([1, 0]), np.ones(2))
    assert concepts_of(graph, 1, torch.Generator().manual_seed(0)).tolist() == [0, 0, -1, -1, -1]
    nothing = Graph(3, *(np.zeros(0, dtype=np.int64) for _ in range(2)), np.zeros(0))
    assert concepts_of(nothing, 1, torch.Generator()).tolist() == [-1, -1, -1]
    assert without_small(np.array([3, 3, 1, -1]), 2).tolist() == [0, 0, -1, -1]


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.6])
def test_the_memory_moves_row_after_row(momentum):
    random = torch.Generator().manual_seed(0)
    memory = F.normalize(torch.randn(4, 6, generator=random, dtype=torch.float64), dim=1)
    z = torch.randn(40, 6, generator=random, dtype=torch.float64)
    concept = torch.randint(-1, 4, (40,), generator=random)
    expected = memory.clone()
    for row, own in zip(F.normalize(z, dim=1), concept.tolist(), strict=True):
        if own >= 0:
            expected[own] = F.normalize(momentum * expected[own] + (1 - momentum) * row, dim=0)
    torch.testing.assert_close(moved_memory(memory, z, concept, momentum), expected)


def test_rows_without_a_concept_are_in_no_loss():
    memory = F.normalize(torch.randn(3, 6), dim=1)
    z, concept = torch.randn(8, 6), torch.tensor([0, 1, 2, -1, 0, 1, 2, -1])
    weight = torch.ones(8)
    known = concept >= 0
    expected = F.cross_entropy(F.normalize(z, dim=1)[known] @ memory.T / 0.05, concept[known])
    torch.testing.assert_close(concept_loss(z, memory, concept, weight, 0.05), expected)
    assert concept_loss(z, memory, torch.full((8,), -1), weight, 0.05) == 0
    found = Shares(30, 70).weights(concept, torch.tensor([10, 20, 30]), torch.arange(8) < 4)
    assert found[~known].tolist() == [0, 0]
    assert found[known].mean() == pytest.approx(1)


def test_rates_begin_above_zero_and_end_at_the_floor():
    rate = WarmupThenCosine(5, 1e-4, released=False)
    found = [rate(0.1, Progress("main", epoch, 50, 0, 1)) for epoch in range(50)]
    assert 0 < found[0] < found[4] < found[5] == 0.1
    assert found[49] < 1e-3
    assert rate(0.1, Progress("main", 0, 1, 0, 1)) == 0.1


def test_state_survives_a_checkpoint():
    method = DCCL(DCCLConfig(**SMALL), tiny_task())
    method.kept = {"concept": torch.arange(12) % 3, "memory": torch.eye(3, 24), "sizes": torch.tensor([4, 4, 4])}
    method.shares = Shares(5, 7)
    twin = DCCL(DCCLConfig(**SMALL), tiny_task())
    twin.load_state_dict(method.state_dict())
    assert twin.shares == Shares(5, 7)
    batch, t = batch_of(), Progress("main", 0, 10, 0, 3)
    one, two = method(batch, t), twin(batch, t)
    assert set(one) == {"info_nce", "supcon", "concept"}
    assert one["concept"].weight == pytest.approx(0.04)
    assert [term.value.item() for term in one.values()] == [term.value.item() for term in two.values()]
    before = method.kept["memory"]
    method.on_step_end(batch, t)
    assert not torch.equal(method.kept["memory"], before)
    assert set(DCCL(DCCLConfig(**SMALL), tiny_task())(batch, t)) == {"info_nce", "supcon"}


def test_settings_that_cannot_be_meant_are_refused():
    for wrong in ({"neighbours": 1}, {"concept_temp": 0}, {"smallest_similarity": 2.0}, {"warmup_epochs": -1}):
        with pytest.raises(UsageError, match="method"):
            DCCLConfig(**wrong)


def test_infomap_finds_no_shorter_code():
    """Only where the package is installed (it is GPL, and nothing here needs it)."""
    infomap = pytest.importorskip("infomap", reason="the optional package infomap is not installed")
    features, true = clouds(9, 40, 0.6)
    neighbour, distance = nearest_rows(features, 15)
    graph = links(neighbour, distance, np.full(len(true), -1), 0.2, "none")
    theirs = infomap.Infomap("--two-level --directed --silent")
    for a, b, w in zip(graph.source, graph.target, graph.weight, strict=True):
        theirs.add_link(int(a), int(b), float(w))
    theirs.run()
    ours = code_length(Flow.of(graph), concepts_of(graph, 1, torch.Generator().manual_seed(0)))
    assert ours <= theirs.codelength * 1.002


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_conformance(recipe):
    report = run_checks("dccl", recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_a_run_on_digits_is_better_than_chance(recipe, tmp_path):
    (record,) = gcdbench.run("dccl", "digits", recipe=recipe, runs=tmp_path / "runs", epochs=3)
    assert record.metrics["all"] > 50


def test_the_number_of_concepts_of_digits(tmp_path):
    (record,) = gcdbench.run("kmeans", "digits", runs=tmp_path / "runs", k="dccl")
    assert 5 <= record.k_estimate["k"] <= 60
