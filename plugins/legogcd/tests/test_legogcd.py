from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gcdbench_legogcd import LegoGCD, LegoGCDConfig
from gcdbench_legogcd.losses import confident_base, dual_view_kl, local_entropy, moved
from gcdbench_simgcd import SimGCD

import gcdbench
from gcdbench.config.presets import read_preset
from gcdbench.contracts import Progress
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from gcdbench.testing.recording import Recording
from gcdbench.testing.trajectory import build, replay
from tests.support.tiny import batch_of, tiny_task

GOLDEN = Path(__file__).parents[3] / "tests" / "golden"
T = Progress("main", 0, 10, 0, 3)
SMALL = {"projector_hidden": 16, "projector_out": 8}


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def cosines(rows: int = 20, classes: int = 5) -> torch.Tensor:
    return torch.rand(rows, classes, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_which_rows_count_as_known():
    z = cosines().double().numpy()
    unlabelled = np.arange(20) % 3 > 0
    p = softmax(z / 0.1)
    expected = [unlabelled[i] and p[i].max() >= 0.7 and p[i].argmax() < 3 for i in range(20)]
    found = confident_base(cosines(), torch.from_numpy(unlabelled), 3, 0.1, 0.7)
    assert found.tolist() == expected
    assert 0 < sum(expected) < 20


def test_local_entropy_is_the_published_formula():
    z, q = cosines().double().numpy(), np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    chosen = np.arange(20) % 2 == 0
    total = 0.0
    for i in np.flatnonzero(chosen):
        p = softmax(z[i : i + 1] / 0.05)[0]
        moved_by_q = softmax(z[i : i + 1] / 0.05 + 0.4 * np.log(q))[0]
        total -= (p * np.log(moved_by_q)).sum()
    found = local_entropy(cosines(), torch.from_numpy(chosen), torch.from_numpy(q), 0.05, 0.4)
    assert found.item() == pytest.approx(total / 20, rel=1e-4)


@pytest.mark.parametrize("double_softmax", [False, True])
def test_the_divergence_is_one_way_from_the_first_view(double_softmax):
    z = cosines().double().numpy() / 0.1
    p = softmax(z)
    logs = np.log(softmax(p) if double_softmax else p)
    expected = (p[:10] * (logs[:10] - logs[10:])).sum(1).mean()
    assert dual_view_kl(cosines(), 0.1, double_softmax).item() == pytest.approx(expected, rel=1e-4)


def test_the_running_distribution_is_at_temperature_one():
    before = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.1])
    expected = 0.9 * before.numpy() + 0.1 * softmax(cosines().double().numpy()).mean(0)
    np.testing.assert_allclose(moved(before, cosines(), 0.9).numpy(), expected, atol=1e-6)


def test_terms_and_weights():
    method = LegoGCD(LegoGCDConfig(**SMALL), tiny_task())
    losses = method(batch_of(), T)
    base = SimGCD(SimGCD.Config(**SMALL), tiny_task())(batch_of(), T)
    assert set(losses) - set(base) == {"dkl", "ler"}
    assert {n: (t.value.item(), t.weight) for n, t in losses.items() if n in base} == {
        n: (t.value.item(), t.weight) for n, t in base.items()
    }
    assert losses["ler"].weight == 2.0
    assert losses["dkl"].weight == pytest.approx(0.65)


def test_a_batch_is_regularised_with_the_distribution_before_it():
    method = LegoGCD(LegoGCDConfig(**SMALL, marginal_momentum=0.0, threshold=0.0), tiny_task())
    batch = batch_of()
    logits = method.logits(batch.tokens)["main"]
    chosen = confident_base(logits, ~batch.labelled.repeat(2), 3, 0.1, 0.0)
    equal = torch.full((5,), 0.2)
    expected = local_entropy(logits, chosen, equal, 0.05, 0.4).item()
    assert method.train()(batch, T)["ler"].value.item() == pytest.approx(expected, rel=1e-5)
    assert not torch.allclose(method.marginal, equal)


def test_the_distribution_moves_in_training_only():
    method = LegoGCD(LegoGCDConfig(**SMALL, marginal_momentum=0.5), tiny_task())
    before = method.marginal.clone()
    method.eval()(batch_of(), T)
    assert torch.equal(method.marginal, before)
    method.train()(batch_of(), T)
    assert not torch.equal(method.marginal, before)
    assert method.marginal.sum().item() == pytest.approx(1.0, rel=1e-5)


def test_published_thresholds_and_entropy_weights():
    for recipe in ("paper", "released"):
        tables = read_preset(LegoGCD, recipe)["dataset"]
        found = {
            n: (t["method"]["threshold"], t["method"]["entropy_weight"]) for n, t in tables.items() if n != "digits"
        }
        assert found == {
            "cifar10": (0.95, 1), "cifar100": (0.85, 2), "imagenet100": (0.8, 1), "cub": (0.7, 2), "scars": (0.85, 1),
            "aircraft": (0.9, 1), "herbarium19": (0.7, 1),
        }  # fmt: skip
    assert read_preset(LegoGCD, "released")["default"]["method"] == {"double_softmax": True}
    assert not LegoGCDConfig().double_softmax


def test_settings_that_cannot_be_meant_are_refused():
    for wrong in ({"threshold": 1.5}, {"ler_temp": 0}, {"marginal_momentum": -1}):
        with pytest.raises(UsageError, match=f"method.{next(iter(wrong))}"):
            LegoGCDConfig(**wrong)


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_conformance(recipe):
    report = run_checks("legogcd", recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
def test_a_run_on_digits_is_better_than_chance(tmp_path):
    (record,) = gcdbench.run("legogcd", "digits", runs=tmp_path / "runs", epochs=3)
    assert record.metrics["all"] > 60


@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_every_term_and_weight_of_the_authors_code_is_reproduced(recipe):
    found = replay(LegoGCD, GOLDEN / f"legogcd_{recipe}_trajectory.npz", recipe, "plain")
    names = {d.name for d in found}
    assert {"ce", "self", "neg_entropy", "info_nce", "supcon", "dkl", "ler", "final head.mlp.4.weight"} <= names
    assert sum(name.startswith("final backbone.") for name in names) == 14  # the block and the (frozen) norm
    for deviation in found:
        assert deviation.largest <= 1e-5, deviation


@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_recorded_terms_move(recipe):
    """A term that stands still from the first step on would test nothing."""
    recording = Recording(GOLDEN / f"legogcd_{recipe}_trajectory.npz")
    moves = dict(zip(recording.settings["loss_names"], np.ptp(recording.losses("plain"), axis=0), strict=True))
    assert min(moves[name] for name in ("info_nce", "supcon", "ce", "self")) > 0.1
    assert moves["dkl"] > 0.01
    assert moves["ler"] > 1e-3


def test_the_recorded_threshold_is_taken():
    recording = Recording(GOLDEN / "legogcd_paper_trajectory.npz")
    for threshold in (0.6, 0.85):
        recording.settings["args"]["thr"] = threshold
        assert build(LegoGCD, recording, "paper", "plain").method.config.threshold == threshold


def test_the_weight_of_local_entropy_is_that_of_the_published_logs():
    tables = read_preset(LegoGCD, "paper")["dataset"]
    weights = {name: tables[name]["method"].get("ler_weight") for name in tables if name != "digits"}
    assert weights == {
        "cifar10": 1, "cifar100": 1, "cub": 2, "aircraft": 2, "herbarium19": 2, "scars": 2, "imagenet100": 2,
    }  # fmt: skip
    for name in ("scars", "imagenet100"):
        assert "weight of LER ours" in tables[name]["source"]
    released = read_preset(LegoGCD, "released")["dataset"].values()
    assert all("ler_weight" not in table.get("method", {}) for table in released)
    assert LegoGCDConfig().ler_weight == 2
