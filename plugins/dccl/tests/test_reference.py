"""Against numbers recorded from the authors' code, and from Infomap."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gcdbench_dccl import DCCLConfig
from gcdbench_dccl.concepts import Shares, centres, concept_loss, concepts_of, moved_memory, without_small
from gcdbench_dccl.graph import Graph, links, nearest_rows
from gcdbench_dccl.map_equation import Flow, code_length
from gcdbench_dccl.method import WarmupThenCosine, concept_weight
from sklearn.metrics import adjusted_rand_score

from gcdbench.contracts import Progress
from gcdbench.toolbox.losses import info_nce, supervised_contrastive
from tests.support.recorded import close, recorded, tensor

RULES = {"plain": "none", "corrected": "pairs", "released": "ranks"}
SCENES = {"clear": 1.0, "mixed": 0.9}


def scene(name):
    g = recorded(__file__, f"dccl_concepts_{name}")
    return g, np.where(g["labelled"], g["true_class"], -1)


def graph_of(g, rule):
    source, target = g["link"].T
    return Graph(len(g["features"]), source, target, g[f"weight_{rule}"])


@pytest.mark.parametrize("name", SCENES)
def test_neighbours_links_and_weights(name):
    g, target = scene(name)
    neighbour, distance = nearest_rows(tensor(g["features"]), g["neighbour"].shape[1])
    np.testing.assert_array_equal(neighbour, g["neighbour"])
    close(distance, g["distance"], rtol=0, atol=1e-6)
    config = DCCLConfig()
    for rule, own in RULES.items():
        found = links(neighbour, distance, target, config.smallest_similarity, own)
        mine = sorted(zip(found.source.tolist(), found.target.tolist(), found.weight.tolist(), strict=True))
        theirs = sorted(zip(*g["link"].T.tolist(), g[f"weight_{rule}"].tolist(), strict=True))
        assert [pair[:2] for pair in mine] == [pair[:2] for pair in theirs]
        close(np.array([pair[2] for pair in mine]), np.array([pair[2] for pair in theirs]), rtol=0, atol=1e-6)
    alone = np.setdiff1d(np.arange(found.rows), found.source)
    np.testing.assert_array_equal(alone, np.sort(g["isolated"]))


@pytest.mark.parametrize("name", SCENES)
def test_flow_and_code_length_of_recorded_modules(name):
    g, _ = scene(name)
    flow = Flow.of(graph_of(g, "released"))
    close(flow.row, g["node_flow_released"], rtol=1e-9, atol=1e-9)
    for rule in ("corrected", "released"):
        found = code_length(Flow.of(graph_of(g, rule)), g[f"module_{rule}"])
        close(found, g[f"codelength_{rule}"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SCENES)
def test_concepts(name):
    g, _ = scene(name)
    for rule in RULES:
        graph = graph_of(g, rule)
        for seed in range(3):
            everyone = concepts_of(graph, 1, torch.Generator().manual_seed(seed))
            linked = everyone >= 0
            alone = np.arange(graph.rows) + everyone.max() + 1
            bits = code_length(Flow.of(graph), np.where(linked, everyone, alone))
            assert bits <= float(g[f"codelength_{rule}"]) * 1.002
            found = without_small(everyone, DCCLConfig().smallest_concept)
            assert adjusted_rand_score(found, g[f"concept_{rule}"]) >= SCENES[name] - 1e-12
        if f"module_{rule}" in g:  # dropping small groups is exact
            kept = without_small(g[f"module_{rule}"], DCCLConfig().smallest_concept)
            assert adjusted_rand_score(kept, g[f"concept_{rule}"]) == 1.0
            np.testing.assert_array_equal(kept < 0, g[f"concept_{rule}"] < 0)


@pytest.mark.parametrize("name", SCENES)
def test_centres(name):
    g, _ = scene(name)
    concept = torch.from_numpy(g["concept_released"])
    features = tensor(g["features"])
    close(centres(features, concept), g["centre"], atol=1e-5)
    close(F.normalize(tensor(g["centre_raw"]), dim=1), g["centre"], atol=1e-5)
    raw = torch.stack([features[concept == c].mean(0) for c in range(len(g["centre_raw"]))])
    close(raw, g["centre_raw"], atol=1e-5)


def test_concept_loss_and_memory():
    g = recorded(__file__, "dccl_memory")
    features, memory, target = tensor(g["features"], grad=True), tensor(g["memory"]), tensor(g["target"])
    config = DCCLConfig()
    assert (config.concept_temp, config.memory_momentum) == (float(g["temperature"]), float(g["momentum"]))
    loss = concept_loss(features, memory, target, torch.ones(len(target)), config.concept_temp)
    close(loss, g["loss"])
    loss.backward()
    close(features.grad, g["grad"], rtol=1e-4, atol=1e-5)
    close(moved_memory(memory, features.detach(), target, config.memory_momentum), g["memory_after"], atol=1e-6)


def test_contrastive_terms():
    g = recorded(__file__, "dccl_contrastive")
    features = tensor(g["features"], grad=True)
    config = DCCLConfig()
    nce = info_nce(features, config.info_nce_temp)
    sup = supervised_contrastive(features, tensor(g["target"]), tensor(g["labelled"]), config.supcon_temp)
    close(nce, g["info_nce"])
    close(sup, g["supcon"])
    total = (1 - config.sup_weight) * nce + config.sup_weight * sup
    close(total, g["total"])
    total.backward()
    close(features.grad, g["grad"], rtol=1e-4, atol=1e-6)


def test_weights_stand_for_the_authors_batches():
    """Their batches hold equally many rows of each concept. Ours do not, but their weighted mean is the same."""
    g = recorded(__file__, "dccl_sampler")
    names = np.unique(g["pseudo"])
    drawn = g["pseudo"][g["drawn"]]
    assert (drawn == drawn[:, :1]).all()
    assert sorted(drawn[:, 0]) == sorted(names)
    assert g["drawn"].size == g["length"]
    sizes = np.array([(g["pseudo"] == name).sum() for name in names])
    for line in g["drawn"][np.isin(drawn[:, 0], names[sizes > g["drawn"].shape[1]])]:
        assert len(set(line.tolist())) == len(line)
    concept = torch.from_numpy(np.searchsorted(names, g["pseudo"]))
    labelled = torch.arange(len(concept)) % 3 == 0
    weight = Shares(int(labelled.sum()), int((~labelled).sum())).weights(concept, torch.from_numpy(sizes), labelled)
    chance = torch.where(labelled, 0.5 / labelled.sum(), 0.5 / (~labelled).sum())
    of_concept = torch.stack([(weight * chance)[concept == c].sum() for c in range(len(names))])
    close(of_concept / of_concept.sum(), np.full(len(names), 1 / len(names)), atol=1e-6)
    of_row = (weight * chance)[concept == 0]
    close(of_row / of_row.sum(), np.full(len(of_row), 1 / len(of_row)), atol=1e-6)


def test_schedules():
    g = recorded(__file__, "dccl_schedule")
    epochs = len(g["lr"])
    rate = WarmupThenCosine(DCCLConfig().warmup_epochs, 1e-4, released=True)
    found = [rate(0.1, Progress("main", epoch, epochs, 0, 1)) for epoch in range(epochs)]
    close(np.array(found), g["lr"], rtol=0, atol=1e-5)
    weights = [concept_weight(DCCLConfig(), epoch) for epoch in range(epochs)]
    close(np.array(weights), g["concept_weight"], rtol=0, atol=1e-12)
