"""Networks with a feature map as backbones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from gcdbench.backbone.feature_map import CPU_PASS, SplitFeatureMap, as_cells
from gcdbench.backbone.load import build, describe, has_feature_map, input_config, load_backbone, on_meta
from gcdbench.backbone.projection import Projection, fit_projection
from gcdbench.backbone.timm_import import import_timm
from gcdbench.config.sections import BackboneConfig, ViewConfig
from gcdbench.data.images import resize_shorter
from gcdbench.data.views import Normalise
from gcdbench.errors import DataError, UsageError
from gcdbench.system.seeding import fenced_rng

NETWORKS = ("test_efficientnet", "test_resnet", "test_convnext", "test_byobnet", "swin_tiny_patch4_window7_224")
"""Channels first and last, with and without a norm after pooling."""


def images(rows: int = 3, side: int = 64) -> torch.Tensor:
    return torch.randn(rows, 3, side, side, generator=torch.Generator().manual_seed(0))


def loaded(name: str = "test_efficientnet", side: int = 64, **more) -> SplitFeatureMap:
    backbone, _ = load_backbone(BackboneConfig(name, "random", **more), side)
    assert isinstance(backbone, SplitFeatureMap)
    return backbone


@pytest.mark.parametrize("name", NETWORKS)
def test_the_untrained_read_out_is_timms_pooled_feature(name):
    side = 224 if name.startswith("swin") else 64
    backbone = loaded(name, side)
    batch = images(2, side)
    with torch.no_grad(), fenced_rng(0, "test"):
        read = backbone.tail(norm=True)(backbone.trunk(batch))
        network = backbone.network.eval()
        pooled = network.forward_head(network.forward_features(batch), pre_logits=True)
    assert read.shape == (2, 1, backbone.embed_dim)
    assert torch.allclose(read[:, 0], pooled, atol=1e-5, rtol=1e-4)
    assert pooled.std() > 1e-3  # not two zeros


def test_cells_are_the_map_line_by_line():
    backbone = loaded()
    batch = images()
    tokens = backbone.trunk(batch)
    with torch.no_grad():
        found = backbone.network.forward_features(batch)
    assert tokens.shape == (3, 1 + 4, 256) == (3, backbone.num_tokens, backbone.embed_dim)
    assert torch.allclose(tokens[:, 1 + 1 * 2 + 1], found[:, :, 1, 1], atol=1e-5)
    assert torch.allclose(tokens[:, 0], tokens[:, 1:].mean(1), atol=1e-5)


def test_both_orders_of_a_map_are_understood():
    found = torch.randn(2, 5, 3, 4)  # rows, channels, height, width
    assert torch.equal(as_cells(found, 5), as_cells(found.permute(0, 2, 3, 1), 5))
    with pytest.raises(UsageError, match="no feature map"):
        as_cells(found[:, :, 0], 5)


def test_a_pass_does_not_depend_on_its_companions():
    backbone = loaded()
    batch = images(CPU_PASS + 3)
    whole = backbone.trunk(batch)
    assert torch.allclose(whole[-3:], backbone.trunk(batch[-3:]), atol=1e-5)


def test_blocks_start_as_identity_and_can_learn_everything():
    backbone = loaded(tail_depth=2, tail_heads=2, tail_width=32)
    with fenced_rng(0, "test"):
        tail = backbone.tail(norm=False, extra_tokens=1)
    tokens = backbone.trunk(images())
    extra = torch.randn(1, 256, generator=torch.Generator().manual_seed(1))
    out = tail(tokens, extra)
    assert torch.allclose(out[:, 0], tokens[:, 0])
    assert torch.allclose(out[:, 1], extra.expand(3, -1))
    assert torch.allclose(tail(tokens, extra, on_cls=True)[:, 1], tokens[:, 0] + extra)
    assert tail.exact_read
    assert tail.blocks[0].attn.qkv.out_features == 96
    assert tail.blocks[0].mlp.fc1.out_features == 128
    out.pow(2).sum().backward()
    silent = {n for n, p in tail.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
    # What lies behind a projection that is still zero learns from the second step on; the projections learn at once.
    assert not any("attn.proj" in n or "mlp.fc2" in n for n in silent)


def test_tails_are_where_the_network_is():
    backbone = loaded(tail_norm="layer").to(torch.device("cpu"), torch.float64)
    with fenced_rng(0, "test"):
        tail = backbone.tail()
    assert {p.dtype for p in tail.parameters()} == {torch.float64}
    assert tail(backbone.trunk(images().double())).dtype == torch.float64


def test_tokens_need_not_be_divisible_by_heads():
    assert loaded(pca=150, tail_width=128).tail().blocks[0].attn.qkv.out_features == 3 * 128


def test_the_exact_read_equals_the_whole_block():
    backbone = loaded(tail_width=32)
    with fenced_rng(0, "test"):
        tail = backbone.tail(extra_tokens=1)
    torch.nn.init.normal_(tail.blocks[0].attn.proj.weight, generator=torch.Generator().manual_seed(2))
    tokens, extra = backbone.trunk(images()), torch.ones(1, 256)
    one = tail(tokens, extra)
    tail.exact_read = False
    assert torch.allclose(one, tail(tokens, extra), atol=1e-4)


def test_blocks_follow_the_seed_around_them_and_disturb_no_one():
    backbone = loaded()

    def weights(seed):
        with fenced_rng(seed, "init"):
            return backbone.tail().blocks[0].attn.qkv.weight

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))
    assert torch.equal(torch.rand(1), expected)


def test_trunks_are_frozen_and_in_evaluation_mode():
    backbone = loaded()
    assert not any(p.requires_grad for p in backbone.trunk.parameters())
    assert not backbone.trunk.train().training
    before = {n: b.clone() for n, b in backbone.network.named_buffers()}
    backbone.trunk(images())
    assert all(torch.equal(before[n], b) for n, b in backbone.network.named_buffers())  # batch norm has not moved


def test_half_precision_gives_wide_tokens():
    backbone = loaded()
    with torch.autocast("cpu", torch.bfloat16):
        tokens = backbone.trunk(images())
    assert tokens.dtype == torch.float32
    assert torch.allclose(tokens, backbone.trunk(images()), atol=0.2)


def test_a_projection_is_applied_to_cells_and_mean_alike():
    plain = loaded(pca=16)
    assert plain.embed_dim == 16
    found = fit_projection([plain.trunk(images(8))], 16)
    backbone = plain.projected(found).to(torch.device("cpu"))
    tokens = backbone.trunk(images())
    assert tokens.shape == (3, 5, 16)
    assert torch.allclose(tokens[:, 0], tokens[:, 1:].mean(1), atol=1e-4)
    with torch.no_grad(), fenced_rng(0, "test"):
        read = backbone.tail(norm=True)(tokens)[:, 0]
        network = backbone.network
        pooled = network.forward_head(network.forward_features(images()), pre_logits=True)
        assert torch.allclose(read, backbone.trunk.projection(pooled), atol=1e-4)


def test_a_layer_norm_can_be_asked_for():
    backbone = loaded(tail_norm="layer")
    with torch.no_grad(), fenced_rng(0, "test"):
        tokens = backbone.trunk(images())
        read = backbone.tail(norm=True)(tokens)[:, 0]
    assert torch.allclose(read, torch.nn.functional.layer_norm(tokens[:, 0], (256,)), atol=1e-6)
    assert not torch.allclose(read, tokens[:, 0], atol=1e-3)


# ---- views ----


def test_input_comes_from_timms_configuration():
    assert has_feature_map("tf_efficientnet_lite0")
    assert not has_feature_map("dino")
    assert not has_feature_map("digits-vit")
    assert not has_feature_map("test_vit")
    assert input_config("tf_efficientnet_lite0") == {
        "views.mean": (0.5,) * 3,
        "views.std": (0.5,) * 3,
        "views.crop": 224,
        "views.resize": 256,
    }
    assert input_config("test_efficientnet")["views.mean"] == (0.485, 0.456, 0.406)
    assert input_config("test_efficientnet")["views.crop"] == 160


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "test_efficientnet"])
def test_what_the_network_sees_is_what_timms_own_transform_shows_it(name):
    """Another normalisation costs tens of points and no error message."""
    import_timm()
    from timm.data import create_transform, resolve_data_config

    network = build(describe(name), 224)
    theirs = create_transform(**{**resolve_data_config({}, model=network), "crop_pct": 0.875})
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((500, 400), Image.Resampling.BICUBIC)
    values = input_config(name)
    views = ViewConfig(**{key.removeprefix("views."): value for key, value in values.items()})
    ours = np.asarray(resize_shorter(image, views.resize))
    top, left = (round((n - views.crop) / 2) for n in ours.shape[:2])
    crop = torch.from_numpy(ours[None, top : top + views.crop, left : left + views.crop].copy())
    seen = Normalise(views, torch.device("cpu"))(crop)
    expected = theirs(image)[None]
    assert seen.shape == expected.shape
    assert (seen - expected).abs().mean() < 0.02
    wrong = Normalise(ViewConfig(mean=(0.4, 0.5, 0.6), std=(0.3, 0.3, 0.3)), torch.device("cpu"))(crop)
    assert (wrong - expected).abs().mean() > 0.1  # the test can tell


# ---- weights ----


@pytest.mark.parametrize("name", ["test_efficientnet", "test_convnext"])
@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_a_checkpoint_with_a_classifier_and_without_counters(tmp_path, name, suffix):
    timm = import_timm()
    from safetensors.torch import save_file

    with fenced_rng(3, "test"):
        trained = timm.create_model(name)
    state = {k: v.contiguous() for k, v in trained.state_dict().items() if not k.endswith("num_batches_tracked")}
    file = tmp_path / f"w.{suffix}"
    if suffix == "pth":
        torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, file)
    else:
        save_file(state, file)
    backbone, info = load_backbone(BackboneConfig(name, str(file)), 64)
    assert info.weights == f"file w.{suffix}"
    with torch.no_grad(), fenced_rng(0, "test"):
        read = backbone.tail()(backbone.trunk(images()))[:, 0]
        trained.eval()
        assert torch.allclose(
            read, trained.forward_head(trained.forward_features(images()), pre_logits=True), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize(("theirs", "ours"), [("test_resnet", "test_efficientnet"), ("test_vit", "test_convnext")])
def test_weights_of_another_network_are_a_sentence(tmp_path, theirs, ours):
    file = tmp_path / "w.pth"
    torch.save(build(describe(theirs), 64).state_dict(), file)
    with pytest.raises(DataError, match="do not fit this backbone"):
        load_backbone(BackboneConfig(ours, str(file)), 64)


# ---- sentences ----


def test_settings_that_cannot_be_meant():
    with pytest.raises(UsageError, match="has only 256 channels"):
        loaded(pca=300)
    with pytest.raises(UsageError, match="frozen whole"):
        loaded(train_from=0)
    with pytest.raises(UsageError, match="cannot be shared by 3 heads"):
        loaded(tail_heads=3)
    with pytest.raises(UsageError, match="cannot be built at 100 px"):
        loaded("swinv2_tiny_window8_256", 100)
    with pytest.raises(UsageError, match=r"no LayerNorm of the map's channels.*tail_norm=layer"):
        loaded("inception_next_atto").tail()
    with pytest.raises(UsageError, match=r"backbone\.pca is for networks with a feature map"):
        load_backbone(BackboneConfig("digits-vit", pca=8), 16)
    with pytest.raises(UsageError, match=r"backbone\.tail_depth is 0"):
        BackboneConfig(tail_depth=0)
    with pytest.raises(UsageError, match="cannot take images of 8 px"):
        loaded("swin_tiny_patch4_window7_224", 8)


def test_shapes_without_numbers():
    whole = on_meta(BackboneConfig("test_efficientnet", pca=16), 64)
    assert whole.embed_dim == 16
    assert whole.num_tokens == 5
    assert isinstance(whole, SplitFeatureMap)
    assert isinstance(whole.trunk.projection, Projection)
    with torch.device("meta"):
        assert whole.tail()(whole.trunk.raw(torch.zeros(2, 3, 64, 64))).shape == (2, 1, 16)
    assert whole.num_parameters() == 99_196
