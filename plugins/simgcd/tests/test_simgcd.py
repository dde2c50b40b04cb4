from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gcdbench_simgcd import SimGCD, SimGCDConfig

from gcdbench import registry
from gcdbench.backbone.timm_import import import_timm
from gcdbench.backbone.vit import SplitViT
from gcdbench.config.presets import read_preset
from gcdbench.config.sections import TrainConfig
from gcdbench.contracts import Batch, Progress, Task
from gcdbench.testing import run_checks
from gcdbench.testing.recording import Recording
from gcdbench.testing.trajectory import build, replay

import_timm()
from timm.models.vision_transformer import VisionTransformer  # noqa: E402

FILE = Path(__file__).parents[3] / "tests" / "golden" / "simgcd_trajectory.npz"


def test_reproduces_every_term_and_the_final_classifier():
    found = replay(SimGCD, FILE, "paper", "plain")
    assert len(found) == 6 + 1
    for deviation in found:
        assert deviation.largest <= 1e-4, deviation


def test_features_before_training_are_the_recorded_ones():
    recording = Recording(FILE)
    start = build(SimGCD, recording, "paper", "plain")
    method, split = start.method, start.backbone
    with torch.no_grad():
        cls = method.tail(split.trunk(recording.batches()[0]["images"]))[:, 0]
        pairs = {"feature": cls, "projection": method.projector(cls), "logits": method.classifier(cls)}
    for name, ours in pairs.items():
        np.testing.assert_allclose(ours.numpy(), recording.arrays[f"step0.{name}"], atol=1e-5)


def test_recorded_terms_move_but_those_of_the_projector():
    """Its projector has collapsed: InfoNCE is ln 63 and SupCon ln 27, whatever is done."""
    recording = Recording(FILE)
    moves = dict(zip(recording.settings["loss_names"], np.ptp(recording.losses("plain"), axis=0), strict=True))
    assert min(moves[name] for name in ("ce", "self", "neg_entropy")) > 0.1
    late = recording.losses("plain")[3:, recording.settings["loss_names"].index("info_nce")]
    assert np.abs(late - np.log(63)).max() < 1e-3


@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_contrastive_terms_are_those_of_recordings_in_which_they_move(recipe):
    """LegoGCD is SimGCD with two terms more: before the first update, those they share are equal."""
    recording = Recording(FILE.parent / f"legogcd_{recipe}_trajectory.npz")
    names, losses = recording.settings["loss_names"], recording.losses("plain")
    for name in ("info_nce", "supcon"):
        assert np.ptp(losses[:, names.index(name)]) > 0.3
    start = build(SimGCD, recording, "paper", "plain")
    data = recording.batches()[0]
    batch = Batch(start.backbone.trunk(data["images"]), data["target"], data["labelled"], torch.arange(32))
    found = start.method(batch, Progress("main", 0, 6, 0, 3))
    for name, term in found.items():
        assert term.value.item() == pytest.approx(losses[0, names.index(name)], abs=1e-5), name


def test_entropy_weights_are_the_published_ones():
    tables = read_preset(SimGCD, "paper")["dataset"]
    weights = {name: tables[name]["method"]["entropy_weight"] for name in tables if name != "digits"}
    assert weights == {
        "cifar10": 1,
        "cifar100": 4,
        "imagenet100": 1,
        "cub": 2,
        "scars": 1,
        "aircraft": 1,
        "herbarium19": 1,
    }


@pytest.mark.parametrize("labelled", [0.0, 0.5, 1.0])
def test_finite_with_any_share_of_labels(labelled):
    torch.manual_seed(0)
    vit = VisionTransformer(img_size=8, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=0)
    task = Task(3, 5, SplitViT(vit), TrainConfig(), 3, torch.Generator().manual_seed(1))
    method = SimGCD(SimGCDConfig(projector_hidden=16, projector_out=8), task)
    mask = torch.rand(12) < labelled
    batch = Batch(torch.randn(24, 5, 24), torch.where(mask, 1, -1), mask, torch.arange(12))
    losses = method(batch, Progress("main", 0, 10, 0, 3))
    losses.total().backward()
    assert torch.isfinite(losses.total())
    assert set(losses) == {"ce", "self", "neg_entropy", "info_nce", "supcon"}
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for _, p in method.trained_parameters())


def test_it_is_registered():
    assert registry.load("method", "simgcd") is SimGCD


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["paper"])
def test_conformance(recipe):
    report = run_checks("simgcd", recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")
