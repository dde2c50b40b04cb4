"""The last block, computed for the read tokens only, equals the whole block in values and gradients."""

from __future__ import annotations

import pytest
import torch

from gcdbench.backbone.block import pick, read_block, reads_exactly
from gcdbench.backbone.folded import can_fold, read_folded
from gcdbench.backbone.timm_import import import_timm
from gcdbench.backbone.vit import SplitViT
from gcdbench.errors import UsageError

import_timm()
from timm.models.vision_transformer import Block, ParallelScalingBlock, VisionTransformer  # noqa: E402

GEOMETRY = {"img_size": 16, "patch_size": 4, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 0}


def vit(**extra):
    torch.manual_seed(0)
    made = VisionTransformer(**GEOMETRY, **extra)
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.1)
    return made.eval()


@pytest.mark.parametrize("extra", [0, 1, 3])
@pytest.mark.parametrize("kind", [{}, {"qk_norm": True}, {"init_values": 0.5}, {"qkv_bias": False}])
def test_values_and_gradients_equal_the_full_block(extra, kind):
    torch.manual_seed(1)
    block = Block(48, 3, **{"qkv_bias": True, **kind})
    for p in block.parameters():
        torch.nn.init.normal_(p, std=0.2)
    assert reads_exactly(block)
    results = []
    for run in (lambda x: pick(block(x), extra), lambda x: read_block(block, x, extra)):
        x = torch.randn(5, 11, 48, generator=torch.Generator().manual_seed(2)).requires_grad_()
        block.zero_grad()
        out = run(x)
        (out * torch.arange(out.numel()).view_as(out).cos()).sum().backward()
        results.append((out.detach(), x.grad, {n: p.grad.clone() for n, p in block.named_parameters()}))
    (full, full_x, full_p), (read, read_x, read_p) = results
    assert read.shape == (5, 1 + extra, 48)
    assert torch.allclose(full, read, atol=1e-5)
    assert torch.allclose(full_x, read_x, atol=1e-5)
    for name, gradient in full_p.items():
        assert torch.allclose(gradient, read_p[name], rtol=1e-4, atol=1e-5 * gradient.abs().max().item() + 1e-6), name


@pytest.mark.parametrize("extra", [0, 1, 3])
@pytest.mark.parametrize("kind", [{}, {"init_values": 0.5}, {"qkv_bias": False}])
def test_the_folded_read_equals_the_full_block_in_values_and_gradients(extra, kind):
    torch.manual_seed(1)
    block = Block(48, 3, **{"qkv_bias": True, **kind}).double()
    for p in block.parameters():
        torch.nn.init.normal_(p, std=0.2)
    tokens = torch.randn(5, 11, 48, dtype=torch.float64)
    results = []
    for folded in (False, True):
        own = torch.randn(5, extra, 48, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        own.requires_grad_()
        block.zero_grad()
        if folded:
            out = read_folded(block, tokens, own if extra else None)
        else:
            out = pick(block(torch.cat([tokens, own], dim=1)), extra)
        (out * torch.arange(out.numel()).view_as(out).cos()).sum().backward()
        results.append((out.detach(), own.grad, {n: p.grad.clone() for n, p in block.named_parameters()}))
    (full, full_own, full_p), (read, read_own, read_p) = results
    assert torch.allclose(full, read, rtol=1e-10)
    assert not extra or torch.allclose(full_own, read_own, rtol=1e-8, atol=1e-10)
    for name, gradient in full_p.items():
        assert torch.allclose(gradient, read_p[name], rtol=1e-8, atol=1e-9), name


def test_a_block_with_normalised_keys_cannot_be_folded():
    assert can_fold(Block(48, 3))
    assert not can_fold(Block(48, 3, qk_norm=True))
    with pytest.raises(UsageError, match="tail_read=plain"):
        SplitViT(vit(qk_norm=True), folded=True).tail()


def test_a_folded_tail_equals_a_plain_one():
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    extra = torch.randn(1, 48, generator=torch.Generator().manual_seed(6))
    outs = []
    for folded in (False, True):
        split = SplitViT(vit(), -2, folded)
        tail = split.tail(extra_tokens=1)
        outs.append(tail(split.trunk(images), extra, on_cls=True))
    assert torch.allclose(*outs, atol=1e-5)


def test_unknown_blocks_are_computed_whole():
    assert not reads_exactly(ParallelScalingBlock(48, 3))
    split = SplitViT(vit(block_fn=ParallelScalingBlock))
    tail = split.tail()
    assert not tail.exact_read
    assert tail(split.trunk(torch.zeros(2, 3, 16, 16))).shape == (2, 1, 48)


@pytest.mark.parametrize("start", [-1, -2, 0, 1, 2])
def test_trunk_and_tail_are_the_whole_network(start):
    whole = vit()
    split = SplitViT(whole, start)
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = whole.forward_features(images)[:, 0]
        got = split.tail(norm=True)(split.trunk(images))[:, 0]
    assert torch.allclose(expected, got, atol=1e-5)


def test_norm_can_be_skipped():
    whole = vit()
    split = SplitViT(whole)
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        raw = split.tail(norm=False)(split.trunk(images))
        assert torch.allclose(whole.norm(raw), split.tail(norm=True)(split.trunk(images)), atol=1e-5)
        assert not torch.allclose(raw, whole.norm(raw), atol=1e-2)


def test_tokens_can_be_trained_on_although_the_trunk_runs_in_inference_mode():
    split = SplitViT(vit())
    tokens = split.trunk(torch.randn(7, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    assert not tokens.is_inference()
    assert not tokens.requires_grad
    tail = split.tail()
    tail(tokens).sum().backward()
    assert all(p.grad is not None for p in tail.blocks.parameters())


def test_only_the_tail_trains_and_tails_are_independent():
    split = SplitViT(vit())
    one, two = split.tail(), split.tail()
    assert not any(p.requires_grad for p in split.trunk.parameters())
    assert {n.split(".")[0] for n, p in one.named_parameters() if p.requires_grad} == {"blocks"}
    with torch.no_grad():
        next(iter(one.blocks.parameters())).add_(1)
    assert not torch.equal(next(iter(one.blocks.parameters())), next(iter(two.blocks.parameters())))
    assert not split.trunk.train().training


def test_train_from_outside_the_network_is_a_sentence():
    with pytest.raises(UsageError, match="has 3 blocks"):
        SplitViT(vit(), 3)


def test_backbones_without_cls_are_refused():
    with pytest.raises(UsageError, match="no CLS token"):
        SplitViT(VisionTransformer(**GEOMETRY, class_token=False, global_pool="avg"))
