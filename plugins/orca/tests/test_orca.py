from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from gcdbench_orca import ORCA, ORCAConfig
from gcdbench_orca.losses import margin_cross_entropy, negative_entropy, pair_agreement, partners

import gcdbench
from gcdbench.config.presets import read_preset
from gcdbench.contracts import Progress
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from gcdbench.testing.recording import RecordedPool, Recording
from gcdbench.testing.trajectory import build, replay
from gcdbench.toolbox.optim import StepsPerEpoch
from tests.support.tiny import batch_of, tiny_task

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "orca_trajectory.npz"
T = Progress("main", 0, 10, 0, 3, torch.Generator().manual_seed(0))


def cosines(rows: int = 10, classes: int = 5) -> torch.Tensor:
    return torch.rand(rows, classes, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_the_margin_raises_the_true_class():
    z, target = cosines(), torch.tensor([0, 1, 2, 0, 1, -1, -1, -1, -1, -1])
    labelled = target >= 0
    values = []
    for i in range(5):
        row = z[i].double().numpy() * 10
        row[target[i]] += 0.3 * 10
        values.append(-math.log(math.exp(row[target[i]]) / np.exp(row).sum()))
    found = margin_cross_entropy(z, target, labelled, torch.tensor(0.3), 10.0)
    assert found.item() == pytest.approx(np.mean(values), rel=1e-4)
    assert found < margin_cross_entropy(z, target, labelled, torch.tensor(0.0), 10.0)


def test_partners_are_of_the_same_class_or_the_nearest():
    features = torch.randn(30, 8, generator=torch.Generator().manual_seed(1))
    target = torch.where(torch.arange(30) < 15, torch.arange(30) % 4, -1)
    labelled = target >= 0
    similar = torch.nn.functional.cosine_similarity(features[:, None], features[None], dim=2).fill_diagonal_(-2)
    seen: dict[int, set[int]] = {}
    for seed in range(20):
        pairs = partners(features, target, labelled, torch.Generator().manual_seed(seed))
        for i, j in enumerate(pairs.tolist()):
            assert i != j
            if labelled[i]:
                assert target[i] == target[j]
                seen.setdefault(i, set()).add(j)
            else:
                assert j == similar[i].argmax()
    assert all(len(mates) > 1 for mates in seen.values())


def test_partners_do_not_depend_on_autocast():
    features = torch.randn(40, 64, generator=torch.Generator().manual_seed(1)) * 0.1 + 1
    target = torch.full((40,), -1)
    plain = partners(features, target, target >= 0, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(partners(features, target, target >= 0, None), plain)


def test_a_labelled_row_without_a_mate_is_its_own():
    target = torch.tensor([0, 1, -1])
    pairs = partners(torch.randn(3, 4), target, target >= 0, None)
    assert pairs[:2].tolist() == [0, 1]
    assert partners(torch.randn(1, 4), torch.tensor([-1]), torch.tensor([False]), None).tolist() == [0]


def test_agreement_and_entropy_are_the_published_formulas():
    p1, p2 = (cosines() * 3).softmax(1), (cosines().flip(0) * 3).softmax(1)
    pairs = torch.arange(10).roll(3)
    a, b = p1.double().numpy(), p2.double().numpy()
    expected = -np.mean([np.log(a[i] @ b[pairs[i]]) for i in range(10)])
    assert pair_agreement(p1, p2, pairs).item() == pytest.approx(expected, rel=1e-4)
    mean = a.mean(0)
    assert negative_entropy(p1).item() == pytest.approx((mean * np.log(mean)).sum(), rel=1e-4)


def test_terms_use_the_first_view_and_weights_are_one():
    method, batch = ORCA(ORCAConfig(), tiny_task()), batch_of()
    method.margin.fill_(0.2)
    losses = method(batch, Progress("main", 0, 10, 0, 3, torch.Generator().manual_seed(0)))
    assert {name: term.weight for name, term in losses.items()} == {"ce": 1.0, "pairs": 1.0, "neg_entropy": 1.0}
    z = method.classifier(method.tail(batch.tokens)[:, 0])
    expected = margin_cross_entropy(z[:12], batch.target, batch.labelled, torch.tensor(0.2), 10.0)
    assert losses["ce"].value.item() == pytest.approx(expected.item(), rel=1e-5)
    p = (10 * z).softmax(1)
    assert losses["neg_entropy"].value.item() == pytest.approx(negative_entropy(p[:12]).item(), rel=1e-5)
    pairs = partners(method.tail(batch.tokens)[:12, 0], batch.target, batch.labelled, torch.Generator().manual_seed(0))
    assert losses["pairs"].value.item() == pytest.approx(pair_agreement(p[:12], p[12:], pairs).item(), rel=1e-5)


@pytest.mark.parametrize(("confidence", "margin"), [(0.9, 0.1), (0.2, 0.5)])
def test_the_margin_is_the_uncertainty_of_unlabelled_rows(confidence, margin):
    class Pool:
        labelled = np.array([True, False, False])

        def features(self, embed, views="test"):
            return torch.tensor([1.0, confidence, confidence])

    method = ORCA(ORCAConfig(), tiny_task())
    method.on_epoch_start(Pool(), T)
    assert method.margin.item() == pytest.approx(margin)


def test_the_rate_falls_in_steps():
    rates = [StepsPerEpoch((0.7, 0.9))(0.1, Progress("main", e, 200, 0, 1)) for e in (0, 139, 140, 179, 180, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    imagenet = read_preset(ORCA, "adapted")["dataset"]["imagenet100"]
    assert [round(90 * share) for share in imagenet["method"]["milestones"]] == [30, 60]


def test_settings_that_cannot_be_meant_are_refused():
    for wrong in ({"scale": 0}, {"milestones": (2.0,)}):
        with pytest.raises(UsageError, match="method"):
            ORCAConfig(**wrong)


@pytest.mark.kit
def test_conformance():
    report = run_checks("orca")
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
def test_a_run_on_digits_is_better_than_chance(tmp_path):
    (record,) = gcdbench.run("orca", "digits", runs=tmp_path / "runs", epochs=4)
    assert record.metrics["all"] > 50
    assert record.config["train"]["sampler"] == "paired"


def test_every_term_and_weight_of_the_authors_code_is_reproduced():
    found = replay(ORCA, GOLDEN, "adapted", "plain")
    assert {"total", "ce", "pairs", "neg_entropy", "final linear.weight"} <= {d.name for d in found}
    assert sum(d.name.startswith("final backbone.blocks.1.") for d in found) == 12
    for deviation in found:
        assert deviation.largest <= 1e-5, deviation
    assert (np.ptp(np.load(GOLDEN)["plain.losses"], axis=0) > 0.1).all()  # the recorded terms move


def test_the_margin_and_the_rates_are_the_recorded_ones():
    recording = Recording(GOLDEN)
    start = build(ORCA, recording, "adapted", "plain")
    start.method.on_epoch_start(RecordedPool(recording, start.backbone.trunk), T)
    uncertainty = recording.arrays["uncertainty"]
    assert start.method.margin.item() == pytest.approx(min(uncertainty[0], 0.5), abs=1e-6)
    start.method.config = ORCAConfig(largest_margin=1.0)
    start.method.on_epoch_start(RecordedPool(recording, start.backbone.trunk), T)
    assert start.method.margin.item() == pytest.approx(uncertainty[0], abs=1e-6)
    schedule = StepsPerEpoch(tuple(recording.settings["args"]["milestones"]))
    rates = [schedule(0.1, Progress("main", epoch, 6, 0, 3)) for epoch in range(6)]
    np.testing.assert_allclose(rates, recording.arrays["rates"])
