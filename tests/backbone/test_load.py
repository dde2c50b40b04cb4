"""Weights from files in official formats; parameter counts without allocating."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gcdbench import registry
from gcdbench.backbone.load import build, describe, input_config, load_backbone, on_meta
from gcdbench.backbone.weights import load_into, read_state, weights_hash
from gcdbench.config.sections import BackboneConfig, TrainConfig
from gcdbench.contracts import Task
from gcdbench.errors import DataError, UsageError

TINY = "vit_tiny_patch16_224"


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    return build(describe(TINY), 64)


def same(one, two):
    return weights_hash(one) == weights_hash(two)


def wrap_plain(state):
    return state


def wrap_dino_full(state):
    heads = {"head.mlp.0.weight": torch.zeros(3, 3)}
    student = {f"module.backbone.{k}": torch.zeros_like(v) for k, v in state.items()}
    teacher = {**{f"backbone.{k}": v for k, v in state.items()}, **heads}
    return {"student": student, "teacher": teacher, "epoch": 100}


def wrap_state_dict(state):
    return {"state_dict": {f"module.{k}": v for k, v in state.items()}, "arch": "vit"}


@pytest.mark.parametrize("wrap", [wrap_plain, wrap_dino_full, wrap_state_dict])
def test_pth_files_of_the_authors(wrap, tiny, tmp_path):
    file = tmp_path / "dino.pth"
    torch.save(wrap(tiny.state_dict()), file)
    split, info = load_backbone(BackboneConfig(TINY, str(file)), 64)
    assert info.weights_hash == weights_hash(tiny)
    assert info.weights == "file dino.pth"
    assert split.depth == 12


def test_safetensors_and_position_embedding_of_another_size(tiny, tmp_path):
    file = tmp_path / "w.safetensors"
    save_file(tiny.state_dict(), str(file))
    split, info = load_backbone(BackboneConfig(TINY, str(file)), 96)
    assert info.image_size == 96
    assert split.trunk(torch.zeros(1, 3, 96, 96)).shape == (1, 37, 192)


def test_dinov2_official_names(tmp_path):
    torch.manual_seed(0)
    spec = describe("vit_small_patch14_dinov2.lvd142m")
    vit = build(spec, 56)
    official = {k.replace("ls1.gamma", "ls1.gamma"): v for k, v in vit.state_dict().items()}
    official["mask_token"] = torch.zeros(1, 384)
    file = tmp_path / "dinov2_vits14_pretrain.pth"
    torch.save(official, file)
    fresh = build(spec, 56)
    load_into(fresh, read_state(file), "file")
    assert same(vit, fresh)


def test_wrong_files_are_sentences(tiny, tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        load_backbone(BackboneConfig(TINY, str(tmp_path / "no.pth")), 64)
    file = tmp_path / "w.pth"
    file.write_bytes(b"junk")
    with pytest.raises(DataError, match="cannot be read"):
        read_state(file)
    (tmp_path / "w.safetensors").write_bytes(b"junk")
    with pytest.raises(DataError, match="cannot be read"):
        read_state(tmp_path / "w.safetensors")
    torch.save({"epoch": 3}, file)
    with pytest.raises(DataError, match="no tensors by name"):
        read_state(file)
    state = tiny.state_dict()
    del state["blocks.3.mlp.fc1.bias"]
    torch.save(state, file)
    with pytest.raises(DataError, match="1 missing .*blocks.3.mlp.fc1.bias"):
        load_backbone(BackboneConfig(TINY, str(file)), 64)
    torch.save(build(describe("vit_small_patch16_224"), 64).state_dict(), file)
    with pytest.raises(DataError, match="do not fit"):
        load_backbone(BackboneConfig(TINY, str(file)), 64)


def test_a_checkpoint_cannot_run_code(tmp_path):
    class Bomb:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    file = tmp_path / "w.pth"
    file.write_bytes(pickle.dumps({"w": Bomb()}))
    with pytest.raises(DataError, match="cannot be read"):
        read_state(file)
    torch.save({"w": Bomb()}, file)
    with pytest.raises(DataError, match="cannot be read"):
        read_state(file)
    assert not (tmp_path / "ran").exists()


def test_unknown_backbones_are_sentences():
    with pytest.raises(UsageError, match="Did you mean 'dino"):
        describe("dinno")
    with pytest.raises(UsageError, match="gives no feature map"):
        load_backbone(BackboneConfig("mixer_s32_224", "random"), 224)


def test_missing_hub_weights_are_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(DataError, match="neither in the hub cache nor"):
        load_backbone(BackboneConfig("vit_tiny_patch16_224.augreg_in21k_ft_in1k"), 224)


def test_normalisation_follows_the_weights():
    assert input_config("dino") == {}
    assert input_config("vit_tiny_patch16_224.augreg_in21k_ft_in1k") == {
        "views.mean": (0.5,) * 3,
        "views.std": (0.5,) * 3,
    }


def test_random_weights_depend_on_the_seed():
    hashes = [load_backbone(BackboneConfig("digits-vit", "random"), 16, s)[1].weights_hash for s in (0, 0, 1)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_random_weights_leave_the_global_stream_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    load_backbone(BackboneConfig("digits-vit", "random"), 16)
    assert torch.equal(torch.rand(1), expected)


def counts(method: str, backbone: str = "dino", size: int = 224):
    """Parameters of a method for 200 classes, 100 of them base, without allocating them."""
    cls = registry.load("method", method)
    with torch.device("meta"):
        split = on_meta(BackboneConfig(backbone), size)
        made = cls(cls.Config(), Task(100, 200, split, TrainConfig(), 1))
    trunk = sum(p.numel() for p in split.trunk.parameters())
    return split, made, trunk + sum(p.numel() for p in made.parameters())


def size_of(module):
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts_of_the_papers_appendix():
    split, rlcd, total = counts("rlcd")
    assert split.num_parameters() == 85_798_656
    assert total == 86_029_824
    assert size_of(rlcd.main_head) + size_of(rlcd.aux_head) == 230_400
    assert rlcd.aux_token.numel() == 768
    _, simgcd, total = counts("simgcd")
    assert total == 92_248_064
    assert size_of(simgcd.projector) == 6_295_808
    assert size_of(simgcd.classifier) == 153_600
    assert all(p.device.type == "meta" for p in simgcd.parameters())


def test_dinov2_is_built_at_224():
    split, _, _ = counts("rlcd", "dinov2")
    assert split.trunk.stem.vit.pos_embed.shape == (1, 1 + 16 * 16, 768)


def test_shipped_weights_are_small_and_load():
    from importlib import resources

    file = resources.files("gcdbench.backbone") / "digits_vit.safetensors"
    assert len(file.read_bytes()) < 1_000_000
    split, info = load_backbone(BackboneConfig("digits-vit"), 16)
    assert info.weights == "shipped digits_vit.safetensors"
    assert split.depth == 4


def test_shipped_features_cluster_better_than_pixels():
    from pathlib import Path

    from sklearn.cluster import KMeans

    from gcdbench.backbone.pretrain_digits import as_input, centre, images
    from gcdbench.data.datasets.digits import Digits
    from gcdbench.toolbox.cluster_accuracy import v2

    digits = Digits(Path("."))
    y = digits.index("train").labels
    split, _ = load_backbone(BackboneConfig("digits-vit"), 16)
    pictures = images()
    with torch.no_grad():
        cls = split.tail()(split.trunk(as_input(centre(pictures))))[:, 0]
    features = torch.nn.functional.normalize(cls, dim=1).numpy()
    pixels = np.stack([np.asarray(digits.image("train", r).convert("L")).ravel() for r in range(len(y))])

    def accuracy(x):
        runs = [KMeans(10, n_init=10, random_state=s).fit_predict(x).astype(np.int64) for s in range(3)]
        return np.mean([v2(y, p, 5).all for p in runs])

    assert 0.75 < accuracy(pixels) < 0.82
    assert accuracy(features) >= accuracy(pixels)


def test_weights_from_the_hub_cache(gcdbench, tmp_path):
    """A cache in the hub's layout is found without any network."""
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    torch.manual_seed(1)
    import timm

    vit = timm.create_model(name, pretrained=False)
    repository = tmp_path / "hub" / f"models--timm--{name}"
    snapshot = repository / "snapshots" / "0123456789012345678901234567890123456789"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    save_file(vit.state_dict(), str(snapshot / "model.safetensors"))
    command = ("run", "--method", "rlcd", "--dataset", "digits", "--backbone", name, "--dry-run", "--json")
    small = ("--set", "views.resize=36", "--set", "views.crop=32", "--set", "train.batch_size=4")
    answer = gcdbench(*command, *small, env={"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert answer.code == 0, answer.stderr
    plan = answer.json()["plan"][0]
    expected = build(describe(name), 32)
    load_into(expected, {k: v for k, v in vit.state_dict().items() if not k.startswith("head.")}, "the model")
    assert plan["weights_hash"] == weights_hash(expected)
    assert plan["config"]["views"]["mean"] == [0.5, 0.5, 0.5]
