"""Heads start as their methods state it: the length of prototypes decides how fast they turn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from gcdbench import registry
from gcdbench.backbone.timm_import import import_timm
from gcdbench.backbone.vit import SplitViT
from gcdbench.config.sections import TrainConfig
from gcdbench.contracts import Task
from gcdbench.toolbox.heads import CosineClassifier, Projector

import_timm()
from timm.models.vision_transformer import VisionTransformer  # noqa: E402

DIM, BASE, CLASSES = 192, 150, 300
LAWS = {
    "simgcd": {"classifier": "linear"},
    "legogcd": {"classifier": "linear"},
    "rlcd": {"main_head": "linear", "aux_head": "unit"},
    "gcd": {"head.last": "linear"},
    "cms": {"head.last": "linear"},
    "supref": {"classifier": "linear"},
    "orca": {"classifier": "unit"},
    "kmeans": {},
    "rsplus": {},
    "crncd": {"base": "one", "objective.simgcd.classifier": "linear"},
    "cipr": {"head.last": "linear"},
    "sptnet": {"classifier": "linear"},
    "infosieve": {"projection.last": "linear"},
    "gpc": {"head.last": "linear"},
    "dccl": {"head.last": "linear"},
    "mugcd": {"head.last": "linear", "classifier": "linear", "teacher_classifier": "linear"},
    "protogcd": {"classifier": "linear"},
    "eagc": {"base.classifier": "linear", "known": "linear"},
    "uno": {
        "labelled_head": "one",
        **{f"{kind}.{i}.prototypes": "one" for kind in ("cluster_heads", "over_heads") for i in range(4)},
    },
}
"""What each method states of its prototypes: `linear` is torch's start of a Linear layer, `unit` a normal draw of
spread 1/√dim, `one` exact length one."""


def build(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    vit = VisionTransformer(img_size=8, patch_size=4, embed_dim=DIM, depth=2, num_heads=3, num_classes=0)
    method = registry.load("method", name)
    backbone = SplitViT(vit, method.traits.train_from)
    task = Task(BASE, CLASSES, backbone, TrainConfig(), 3, torch.Generator().manual_seed(1))
    return method(method.Config(**({"frame": 2} if name == "sptnet" else {})), task)


def squared_lengths(weight: torch.Tensor) -> np.ndarray:
    return (weight.detach().double() ** 2).sum(1).numpy()


def follows(weight: torch.Tensor, law: str) -> bool:
    """Whether the squared lengths of rows have the law's mean and spread, and its normal shape."""
    found, dim = squared_lengths(weight), weight.shape[1]
    if law == "one":
        return bool(np.allclose(found, 1, atol=1e-5))
    # x² of a uniform x within ±1/√dim has mean 1/(3 dim) and variance 4/(45 dim²); of a normal one 1/dim and 2/dim².
    mean, spread = (1 / 3, (4 / 45 / dim) ** 0.5) if law == "linear" else (1.0, (2 / dim) ** 0.5)
    standard = (found - mean) / spread
    return kstest(standard, norm.cdf).pvalue > 1e-4 and abs(standard.mean()) < 5 / len(found) ** 0.5


@pytest.mark.parametrize("name", [p.name for p in registry.plugins("method")])
def test_every_head_starts_as_stated(name):
    method = build(name)
    heads = {n: m for n, m in method.named_modules() if type(m).__name__ in ("CosineClassifier", "Prototypes")}
    assert set(heads) == set(LAWS[name])
    for where, law in LAWS[name].items():
        assert follows(heads[where].weight, law), (where, law)
        assert not any(follows(heads[where].weight, other) for other in ("linear", "unit", "one") if other != law)


def test_the_linear_start_is_torchs_own():
    torch.manual_seed(0)
    theirs = squared_lengths(torch.nn.Linear(DIM, 2000).weight)
    ours = squared_lengths(CosineClassifier(DIM, 2000, torch.Generator().manual_seed(0)).weight)
    assert kstest(ours, theirs).pvalue > 1e-3
    assert np.sqrt(ours).mean() == pytest.approx(3**-0.5, abs=0.005)
    weight = CosineClassifier(DIM, 2000, torch.Generator().manual_seed(0)).weight
    assert weight.abs().max() <= DIM**-0.5


def test_the_same_generator_gives_the_same_head():
    one, two = (CosineClassifier(8, 5, torch.Generator().manual_seed(3)).weight for _ in range(2))
    assert torch.equal(one, two)
    with torch.device("meta"):
        assert Projector(8, 4, 2).state_dict()
        assert CosineClassifier(8, 5).weight.is_meta
