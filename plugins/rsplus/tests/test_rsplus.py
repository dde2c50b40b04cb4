from __future__ import annotations

import numpy as np
import pytest
import torch
from gcdbench_rsplus import RSPlus, RSPlusConfig
from gcdbench_rsplus.losses import alike, consistency, known_pairs, pair_loss, ramp_up

import gcdbench
from gcdbench.config.presets import read_preset
from gcdbench.contracts import Progress
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from tests.support.tiny import batch_of, tiny_task

T = Progress("main", 40, 200, 0, 3)


def test_rows_are_alike_if_their_largest_features_are_the_same_ones():
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    sets = [frozenset(np.argsort(-row)[:3].tolist()) for row in x.numpy()]
    expected = [[a == b for b in sets] for a in sets]
    found = alike(x, 3)
    assert found.tolist() == expected
    assert 20 < found.sum() < 400  # some pairs of different rows, not all
    assert alike(x, 99).all()  # with all features there is nothing to tell rows by


def test_pairs_run_over_the_masked_rows_only():
    random = torch.Generator().manual_seed(1)
    one, two = torch.randn(9, 4, generator=random), torch.randn(9, 4, generator=random)
    pairs, rows = torch.rand(9, 9, generator=random) < 0.5, torch.arange(9) % 3 != 0
    p, q = one.double().softmax(1).numpy(), two.double().softmax(1).numpy()
    used = [(i, j) for i in range(9) for j in range(9) if rows[i] and rows[j]]
    values = [-np.log((p[i] @ q[j] if pairs[i, j] else 1 - p[i] @ q[j]) + 1e-7) for i, j in used]
    assert pair_loss(one, two, pairs, rows).item() == pytest.approx(np.mean(values), rel=1e-5)
    empty = pair_loss(one.requires_grad_(), two, pairs, torch.zeros(9, dtype=torch.bool))
    assert empty.item() == 0


def test_labelled_pairs_are_decided_by_label_on_request():
    pairs = torch.zeros(4, 4, dtype=torch.bool)
    target, labelled = torch.tensor([0, 0, 1, -1]), torch.tensor([True, True, True, False])
    found = known_pairs(pairs, target, labelled)
    assert found.int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert known_pairs(~pairs, target, labelled)[3].all()  # pairs with a hidden label stay as they were


def test_the_weight_of_the_agreement_rises_and_stays():
    assert ramp_up(50, 150, 0) == pytest.approx(50 * np.exp(-5))
    assert ramp_up(50, 150, 150) == ramp_up(50, 150, 199) == ramp_up(50, 0, 0) == 50


@pytest.mark.parametrize(("recipe", "pairs", "terms"), [("released", "rank", 2.0), ("intended", "label", 1.0)])
def test_terms_of_a_recipe(recipe, pairs, terms):
    config = RSPlusConfig(**{k: tuple(v) if isinstance(v, list) else v for k, v in settings(recipe).items()})
    assert (config.labelled_pairs, config.consistency_terms) == (pairs, terms)
    method, batch = RSPlus(config, tiny_task()), batch_of()
    losses = method(batch, T)
    first, second = method.classifier(method.tail(batch.tokens)[:, 0]).chunk(2)
    like = alike(method.tail(batch.tokens)[:12, 0], 5)
    if pairs == "label":
        like = known_pairs(like, batch.target, batch.labelled)
    everyone = torch.ones(12, dtype=torch.bool)
    assert losses["pairs"].value.item() == pytest.approx(pair_loss(first, second, like, everyone).item(), rel=1e-5)
    weight = terms * 50 * np.exp(-5 * (1 - 40 / 150) ** 2)
    assert losses["consistency"].weight == pytest.approx(weight)
    assert losses["consistency"].value.item() == pytest.approx(consistency(first, second).item(), rel=1e-5)
    expected = torch.nn.functional.cross_entropy(first[:6], batch.target[:6])  # first views, all classes
    assert losses["ce"].value.item() == pytest.approx(expected.item(), rel=1e-5)


def settings(recipe: str) -> dict:
    return read_preset(RSPlus, recipe)["default"].get("method", {})


def test_the_authors_rates_differ_between_datasets():
    presets = read_preset(RSPlus, "released")
    rates = {name: table.get("train", {}).get("lr", 0.1) for name, table in presets["dataset"].items()}
    assert rates["cifar100"] == 0.1
    assert {rates[name] for name in ("cub", "scars", "aircraft", "herbarium19")} == {0.001}


def test_settings_that_cannot_be_meant_are_refused():
    for wrong in ({"top": 0}, {"milestones": (2.0,)}, {"consistency_weight": -1.0}):
        with pytest.raises(UsageError, match="method"):
            RSPlusConfig(**wrong)


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["released", "intended"])
def test_conformance(recipe):
    report = run_checks("rsplus", recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["released", "intended"])
def test_a_run_on_digits_is_better_than_chance(recipe, tmp_path):
    (record,) = gcdbench.run("rsplus", "digits", recipe=recipe, runs=tmp_path / "runs", epochs=4)
    assert record.metrics["all"] > 40
