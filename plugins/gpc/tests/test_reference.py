"""Against numbers recorded from the authors' code."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from gcdbench_gpc import GPC, GPCConfig
from gcdbench_gpc.niw import Prior
from gcdbench_gpc.prototypes import Clustering, Rules, prototype_loss, prototypes, split_and_merge

from tests.support.recorded import close, recorded, tensor
from tests.support.replay import Replay

EXACT = {"rtol": 1e-8, "atol": 1e-8}


def test_marginals_and_posteriors():
    g = recorded(__file__, "gpc_niw")
    s = json.loads(str(g["config"]))
    rows, labels = g["features"], g["labels"]
    prior = Prior(rows.mean(0), s["psi_scale"], s["kappa"])
    assert prior.nu == s["nu"]
    close(prior.mean, g["prior.mean"], **EXACT)
    close(np.eye(prior.dim) * prior.scale, g["prior.psi"], **EXACT)
    clusters = [rows[labels == c] for c in range(len(g["log_marginal"]))]
    for c, own in enumerate(clusters):
        centre = prior.centre(own)
        close(centre, g["posterior.mu"][c], **EXACT)
        close(prior.log_marginal(own, centre), g["log_marginal"][c], **EXACT)
        away = own - centre
        n = len(own)
        psi = prior.scale * np.eye(prior.dim) + away.T @ away
        shift = centre - prior.mean
        psi = psi + prior.kappa * n / (prior.kappa + n) * np.outer(shift, shift)
        close(psi, g["star.psi"][c], **EXACT)
        close(centre, g["star.mu"][c], **EXACT)
        close(psi / (prior.nu + n + prior.dim + 2), g["posterior.cov"][c], **EXACT)
        close(np.cov(own.T, bias=True), g["data.cov"][c], **EXACT)
        assert (prior.kappa + n, prior.nu + n) == (pytest.approx(g["star.kappa"][c]), g["star.nu"][c])
    for a, b, n, m, split, merge in g["pairs"]:
        first, second = clusters[int(a)], clusters[int(b)]
        assert (len(first), len(second)) == (n, m)
        close(prior.split_gain(first, second), split, **EXACT)
        close(prior.merge_gain(first, second, (first.mean(0), second.mean(0))), merge, **EXACT)


def test_one_cloud_cut_in_two():
    g = recorded(__file__, "gpc_niw")
    s = json.loads(str(g["config"]))
    rows, side = g["cloud.features"], g["cloud.sub"]
    first, second = rows[side == 0], rows[side == 1]
    prior = Prior(g["prior.mean"], s["psi_scale"], s["kappa"])
    close(prior.merge_gain(first, second, (first.mean(0), second.mean(0))), g["cloud.H_merge"], **EXACT)
    for own, expected in zip((first, second, rows), g["cloud.log_marginal"], strict=True):
        close(prior.log_marginal(own, own.mean(0)), expected, **EXACT)


def test_splits_and_merges():
    g = recorded(__file__, "gpc_split_merge")
    s = json.loads(str(g["config"]))
    for scene, facts in s["scenes"].items():
        rows, target = g[f"{scene}.features"].astype(np.float64), g[f"{scene}.target"]
        labels = g[f"{scene}.kmeans.labels"]
        found = Clustering(rows, labels, g[f"{scene}.kmeans.centres"].astype(np.float64), facts["base"])
        np.testing.assert_array_equal(found.novel, g[f"{scene}.novel"])
        prior = Prior(rows.mean(0), s["psi_scale"], s["kappa"])

        def halves(cluster, own, scene=scene):
            return g[f"{scene}.sub{cluster}.assignment"], g[f"{scene}.sub{cluster}.centres"]

        for kind in ("greedy", "coins"):
            key = f"{scene}.{kind}."
            draws = iter(g[f"{key}draws"].tolist())
            rules = Rules(clean_merges=False, accept=0.0 if kind == "greedy" else s["accept"], min_rows=5)
            centres, done = split_and_merge(found, prior, halves, draws, rules)
            assert next(draws, None) is None  # a coin for each test that needed one
            np.testing.assert_array_equal([done.split[c] for c in found.novel], g[f"{key}split"])
            close(np.array([done.split_gain[c] for c in found.novel]), g[f"{key}split_H"], rtol=0, atol=2e-3)
            whole = [c for c in found.novel if not done.split[c]]
            np.testing.assert_array_equal([done.merge[c] for c in whole], g[f"{key}merge"])
            np.testing.assert_array_equal([done.merge_with[c] for c in whole], g[f"{key}merge_with"])
            close(np.array([done.merge_gain[c] for c in whole]), g[f"{key}merge_H"], rtol=0, atol=2e-3)
            assert len(centres) == g[f"{key}released_count"]
            clean = Rules(clean_merges=True, accept=0.0 if kind == "greedy" else s["accept"], min_rows=5)
            again = itertools.chain(
                g[f"{key}draws"].tolist(), itertools.repeat(1.0)
            )  # pairs are tested in another order
            assert len(split_and_merge(found, prior, halves, again, clean)[0]) == g[f"{key}intended_count"]
            made = prototypes(
                tensor(g[f"{scene}.features"]), target, torch.from_numpy(centres).float(), s["temperature"]
            )
            close(made.centres, g[f"{key}prototypes"], atol=1e-5)
            close(made.density, g[f"{key}density"], atol=1e-5)
            np.testing.assert_array_equal(made.assignment.numpy(), g[f"{key}assignment"])


def test_the_loss_of_prototypes():
    g = recorded(__file__, "gpc_prototypes")
    by_row = torch.full((int(g["pool_index"].max()) + 1,), -1)
    by_row[tensor(g["pool_index"])] = tensor(g["assignment_by_pool_place"])
    assigned = by_row[tensor(g["index"])]
    np.testing.assert_array_equal(assigned.numpy(), g["labels"])
    views = [tensor(g[f"view{number}"], grad=True) for number in (1, 2)]
    centres, density = tensor(g["prototypes"]), tensor(g["density"])
    for number, view in enumerate(views, 1):
        close(view @ centres.T / density, g[f"logits{number}"], atol=1e-5)
    loss = prototype_loss(torch.cat(views), centres, density, assigned)
    close(loss, g["loss"], atol=1e-5)
    loss.backward()
    for number, view in enumerate(views, 1):
        expected, unit = g[f"grad.view{number}"], view.detach().numpy()
        # Ours normalises inside: the part along each feature is gone.
        close(view.grad, expected - (expected * unit).sum(1, keepdims=True) * unit, rtol=1e-5, atol=1e-6)


def test_a_trajectory():
    """The prototypes of each epoch are recorded, since the authors' k-means has random starts."""
    start = Replay(__file__, "gpc_trajectory", train_from=-1)
    g, s = start.arrays, start.settings
    head = {f"head_{name}": width for name, width in s["head"].items()}
    config = GPCConfig(find_k=False, dims=0, sup_weight=s["sup_weight"], warmup_epochs=s["warmup_epochs"], **head)
    method = GPC(config, start.task())
    start.load(method)
    method.eval()
    shown = start.pool.features(method.features)
    close(shown, g["step0.backbone"], atol=1e-4)
    close(method.head(shown), g["step0.projection"], atol=1e-4)

    def found(epoch: int) -> None:
        if epoch < s["warmup_epochs"]:
            return
        for name, own in (("centres", "prototypes"), ("density", "density"), ("assignment", "assignment")):
            method.kept[name] = tensor(g[f"epoch{epoch}.{own}"])

    names = [str(name) for name in g["loss_names"]]
    own_names = {"info_nce": "info_nce", "supcon": "supcon", "prototype": "prototypes"}
    for step in start.steps(method, found):
        values = {name: step.losses[own].value.item() for name, own in own_names.items() if own in step.losses}
        values["total"] = step.losses.total().item()
        for column, name in enumerate(names):
            close(values.get(name, 0.0), g["losses"][step.number, column], rtol=1e-4, atol=1e-4)
        close(np.array(step.rates), np.repeat(g["lr"][step.number], len(step.rates)), rtol=1e-9, atol=1e-9)
    assert step.number == len(g["losses"]) - 1
    close(start.pool.features(method.features), g["final.backbone"], rtol=1e-4, atol=1e-4)
    assert start.compare_final(method) >= 4
