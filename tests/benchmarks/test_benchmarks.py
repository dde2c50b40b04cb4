"""The benchmark's parts: the reference step is a step, figures judge as they should, the quick run works."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from benchmarks import clusters
from benchmarks.__main__ import main
from benchmarks.figure import Claim, Figure, Growth, faster
from benchmarks.reference import ReferenceBackbone, public_kmeans
from benchmarks.run import PARTS
from benchmarks.scene import Subjects
from tests.backbone.test_block import vit


def test_figures_judge():
    assert Figure("x", 2.0, 2.0).reached
    assert not Figure("x", 1.9, 2.0).reached
    assert Figure("x", 1.0, 2.0).halfway
    assert not Figure("x", 0.9, 2.0).halfway
    assert Figure("x", 0.8, 0.83, at_least=False).reached
    assert Figure("x", 1.6, 0.83, at_least=False).halfway
    assert not Figure("x", 1.7, 0.83, at_least=False).halfway
    assert Growth("x", (1, 2, 4), (1.0, 1.5, 4.9)).linear
    assert not Growth("x", (1, 2, 4), (1.0, 1.5, 5.1)).linear
    ratio, told = faster(lambda: sum(range(200_000)), lambda: None, 3, times=2)
    assert ratio > 10
    assert "against" in told


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("norm", [True, False])
def test_the_reference_network_gives_what_the_tail_gives(extra, norm):
    from gcdbench.backbone.vit import SplitViT

    split = SplitViT(vit())
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    token = torch.randn(extra, split.embed_dim) if extra else None
    whole = ReferenceBackbone(split).tail(norm=norm, extra_tokens=extra)
    tail = split.tail(norm=norm, extra_tokens=extra)
    one, other = whole(images, token), tail(split.trunk(images), token)
    assert torch.allclose(one, other, atol=1e-5)
    one.square().sum().backward()
    other.square().sum().backward()
    for a, b in zip(whole.last.parameters(), tail.blocks[-1].parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-4)
    assert all(p.grad is None for p in whole.frozen.parameters())


def test_the_public_kmeans_is_kmeans():
    data, targets = clusters.blobs(800)
    start = data[:200].clone()
    labels, centres = public_kmeans(data, targets, start, 2)
    assert (labels[targets >= 0] == targets[targets >= 0]).all()
    distance = torch.cdist(data, centres)
    free = targets < 0
    assert (labels[free] == distance.argmin(1)[free]).all()


def test_subjects_are_read_from_the_config():
    subjects = Subjects.read()
    assert len(subjects.methods) == 2
    assert subjects.experiment == "ablation"


def test_a_failed_claim_or_half_a_bar_is_exit_code_1(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def bench(*arguments):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr()

    def part(found):
        return lambda scene: iter(found)

    good = [Figure("fast", 1.2, 2.0), Claim("equal", True), Growth("cost", (1, 2), (1.0, 5.0))]
    for name in PARTS:
        monkeypatch.setitem(PARTS, name, part([]))
    monkeypatch.setitem(PARTS, "step", part(good))
    code, text = bench("--quick", "-o", "out.json")
    assert code == 0, text.err
    assert "1.20x" in text.out
    assert (tmp_path / "out.json").is_file()
    for bad, name in ((Claim("equal", False), "equal"), (Figure("slow", 0.9, 2.0), "slow")):
        monkeypatch.setitem(PARTS, "step", part([*good, bad]))
        code, text = bench("--quick", "--json")
        assert code == 1
        assert f"1 benchmarks failed: {name}." in text.err
        assert json.loads(text.out)["results"][0]["reached"] is False
    assert bench("--only", "image")[0] == 2
    assert "Did you mean 'images'" in bench("--only", "image")[1].err
