"""Against numbers recorded from the authors' code."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gcdbench_infosieve import InfoSieve, InfoSieveConfig
from gcdbench_infosieve import losses as terms
from gcdbench_infosieve.code_head import Age, CodeHead
from gcdbench_infosieve.kmeans import Rows, from_starts, starts

from tests.support.recorded import close, recorded, tensor
from tests.support.replay import Replay


def contrastive(z, g, name):
    target = tensor(g["pseudo"] if name == "pseudo" else g["target"]).repeat(2)
    labelled = tensor(g["labelled"]).repeat(2)
    mask = torch.ones_like(labelled) if name == "pseudo" else labelled
    return target, mask


def test_losses_of_features():
    g = recorded(__file__, "infosieve_losses")
    z = tensor(g["features"])
    found = terms.distances(F.normalize(z, dim=1))
    own = ~torch.eye(len(z), dtype=torch.bool)
    for row, logits in enumerate(g["nce.logits"]):  # the positive first, then the others in order
        close((-found[row][own[row]]).sort().values, np.sort(logits), atol=1e-5)
        close(-found[row, (row + len(z) // 2) % len(z)], logits[0])
    for name in (n for n in g if n.startswith("nce.smoothing")):
        smoothing = float(name.removeprefix("nce.smoothing"))
        close(terms.smoothed_info_nce(found, 1.0, smoothing), g[name], rtol=1e-5, atol=1e-5)
    plain = terms.distances(z)  # not normalised again
    for name in ("labelled", "pseudo"):
        target, mask = contrastive(z, g, name)
        close(terms.distance_contrastive(plain, target, mask, 0.07), g[f"supcon.{name}"], atol=1e-5)


def codes_of(g, bits):
    s = json.loads(str(g["config"]))
    weights = {
        n.removeprefix(f"bits{bits}.head."): tensor(v) for n, v in g.items() if n.startswith(f"bits{bits}.head.")
    }
    hidden, width = weights["coder.0.weight"].shape
    layers = sum(n.startswith("coder.") and n.endswith("weight") for n in weights) - 2
    head = CodeHead(width, bits, len(weights[f"categorizer.{2 * layers + 2}.bias"]), hidden, layers)
    head.load_state_dict(weights)
    return s, head


@pytest.mark.parametrize("bits", [8, 40])
def test_codes_their_losses_and_gradients(bits):
    g = recorded(__file__, "infosieve_losses")
    s, head = codes_of(g, bits)
    config = InfoSieveConfig()
    weights = s["weights"]
    assert weights["length"] == config.length_weight
    assert weights["category"] == config.category_weight
    epochs = sorted({int(n.split(".")[1].removeprefix("epoch")) for n in g if n.startswith(f"bits{bits}.epoch")})
    assert epochs
    for epoch in epochs:
        key = f"bits{bits}.epoch{epoch}."
        features = tensor(g["features"], grad=True)
        codes = head(features, Age(epoch, s["epochs"]))
        outputs = {n.removeprefix(f"{key}out."): v for n, v in g.items() if n.startswith(f"{key}out.")}
        for name, value in outputs.items():
            mine = head.coder(features) if name == "code_feat" else getattr(codes, name)
            close(mine, value, atol=1e-5)
        everyone = torch.ones(len(features), dtype=torch.bool)
        raw = terms.normalised_distances(F.normalize(codes.raw, dim=1), everyone, along_rows=False)
        own = ~torch.eye(len(features), dtype=torch.bool)
        for row, logits in enumerate(g[f"{key}code_nce.logits"]):
            close((-raw[row][own[row]]).sort().values, np.sort(logits), atol=1e-5)
        for name in (n for n in g if n.startswith(f"{key}code_nce.smoothing")):
            smoothing = float(name.split("smoothing")[1])
            close(terms.smoothed_info_nce(raw, 1.0, smoothing), g[name], atol=1e-5)
        supcon = {}
        for name in ("labelled", "pseudo"):
            target, mask = contrastive(features, g, name)
            distance = terms.normalised_distances(codes.code, mask, along_rows=False)
            supcon[name] = terms.distance_contrastive(distance, target, mask, 0.07)
            close(supcon[name], g[f"{key}code_supcon.{name}"], atol=1e-5)
        close(terms.code_condition(codes.raw), g[f"{key}code_condition"], atol=1e-5)
        close(terms.mask_condition(codes.mask), g[f"{key}mask_condition"], atol=1e-5)
        length = terms.code_length(codes.mask, mean=False)
        close(length, g[f"{key}length"], rtol=1e-4, atol=1e-4)
        target, labelled = contrastive(features, g, "labelled")
        category = terms.category_loss(codes.category, target, labelled)
        close(category, g[f"{key}category"], atol=1e-5)
        plain = terms.distances(features)
        smoothing, sup = s["smoothing_of_total"], s["sup_weight"] / 2
        of_features = sum(
            terms.distance_contrastive(plain, *contrastive(features, g, name), 0.07) for name in ("labelled", "pseudo")
        )
        nce = terms.smoothed_info_nce(terms.distances(F.normalize(features, dim=1)), 1.0, smoothing)
        total = (1 - s["sup_weight"]) * (nce + terms.smoothed_info_nce(raw, 1.0, smoothing))
        total = total + sup * (of_features + sum(supcon.values())) + weights["length"] * length
        total = total + weights["category"] * category
        total = total + weights["code_condition"] * terms.code_condition(codes.raw)
        total = total + weights["mask_condition"] * terms.mask_condition(codes.mask)
        close(total, g[f"{key}total"], rtol=1e-4, atol=1e-4)
        total.backward()
        close(features.grad, g[f"{key}grad.features"], rtol=1e-4, atol=1e-6)


def cases():
    g = recorded(__file__, "infosieve_kmeans")
    s = json.loads(str(g["config"]))
    for case in s["cases"]:
        for kind in ("balanced", "plain"):
            size = int(g[f"{case}.size"]) if kind == "balanced" else None
            rows = Rows(tensor(g[f"{case}.features"]), g[f"{case}.target"], int(g[f"{case}.clusters"]), size)
            yield g, s, f"{case}.{kind}", case, rows


def test_clusters_from_given_starts():
    for g, s, key, case, rows in cases():
        begin = tensor(g[f"{case}.starts"])
        for prefix, second in (("", True), ("first_", False)):
            found = from_starts(rows, begin, s["iterations"], clean=False, second_loop=second)
            np.testing.assert_array_equal(found.labels, g[f"{key}.{prefix}labels"])
            close(found.inertia, g[f"{key}.{prefix}inertia"], rtol=1e-4, atol=1e-4)
            close(found.centres, g[f"{key}.{prefix}centres"], rtol=1e-4, atol=1e-4)


def test_rows_drawn_as_starts():
    for g, _, key, case, rows in cases():
        _, chosen = starts(rows, g[f"{case}.draws"].tolist(), clean=False)
        np.testing.assert_array_equal(chosen, g[f"{key}.drawn"])


def test_a_trajectory():
    """The clusters of each epoch are recorded, since their random starts are not ours."""
    start = Replay(__file__, "infosieve_trajectory", train_from=-2)
    g, s = start.arrays, start.settings
    head = {f"head_{name}": width for name, width in s["projection"].items()}
    config = InfoSieveConfig(
        smoothing=s["smoothing"],
        bits=s["bits"],
        code_hidden=s["head"]["hidden"],
        code_layers=s["head"]["layers"],
        **head,
    )
    method = InfoSieve(config, start.task())
    start.load(method)
    method.eval()
    shown = start.pool.features(method.features)
    close(shown, g["step0.backbone"], atol=1e-4)
    close(method.projection(shown), g["step0.projection"], atol=1e-4)

    def clusters(epoch: int) -> None:
        method.pseudo = torch.from_numpy(g["pseudo"][epoch])

    names = [str(name) for name in g["loss_names"]]
    done = 0
    for step in start.steps(method, clusters):
        value = {name: (term.value * term.weight).item() for name, term in step.losses.items()}
        sums = {
            "total": sum(value.values()),
            "inner": value["nce"] + value["supcon"] + value["pseudo"],
            "code": value["code_nce"] + value["code_supcon"] + value["code_pseudo"],
            **{n: step.losses[n].value.item() for n in ("length", "category", "code_condition", "mask_condition")},
        }
        for column, name in enumerate(names):
            close(sums[name], g["losses"][step.number, column], rtol=1e-4, atol=1e-4)
        close(np.array(step.rates), np.repeat(g["lr"][step.number], len(step.rates)), rtol=1e-9, atol=1e-9)
        done += 1
    assert done == len(g["losses"])
    close(start.pool.features(method.features), g["final.backbone"], rtol=1e-4, atol=1e-4)
    assert start.compare_final(method) >= 5
