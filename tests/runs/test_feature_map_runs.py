"""Whole runs on networks with a feature map: real files in CIFAR's layout, tiny networks, every installed method."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import gcdbench
from gcdbench import registry
from gcdbench.backbone.projection import read_projection
from gcdbench.errors import UsageError
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.pca import FILE, fitted_rows
from gcdbench.prepare.run_context import build_method, run_pool
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.report.reopen import reopen
from gcdbench.training import checkpoint
from tests.support.lanes import assert_equal_runs, assert_resumed_equal
from tests.support.runs import weights
from tests.support.trees import write_cifar10

pytestmark = pytest.mark.usefixtures("few_digits")

SETTINGS = {
    "views.crop": 32,
    "views.resize": 36,
    "backbone.weights": "random",
    "backbone.pca": 16,
    "backbone.pca_images": 60,
    "backbone.tail_width": 8,
    "train.batch_size": 16,
    "train.stream": 0,
    "store.train_views": 3,
    "store.train_tokens": "fp32",
}
OF_METHOD = {
    "simgcd": {"method.projector_hidden": 16, "method.projector_out": 8},
    "legogcd": {"method.projector_hidden": 16, "method.projector_out": 8},
    "gcd": {"method.head_hidden": 16, "method.head_narrow": 8, "method.head_out": 16, "method.restarts": 2},
    "cms": {"method.head_hidden": 16, "method.head_out": 16},
    "kmeans": {},
    "crncd": {"method.projector_hidden": 16, "method.projector_out": 8, "method.pretrain_epochs": 1},
    "cipr": {"method.head_hidden": 16, "method.head_narrow": 8, "method.head_out": 16},
    "supref": {"method.restarts": 2},
    "uno": {"method.projector_hidden": 16, "method.projector_out": 8, "method.pretrain_epochs": 1},
    "dccl": {"method.head_hidden": 16, "method.head_narrow": 8, "method.head_out": 16, "method.restarts": 2},
    "gpc": {"method.head_hidden": 16, "method.head_narrow": 8, "method.head_out": 16, "method.restarts": 2},
    "infosieve": {"method.head_hidden": 16, "method.head_narrow": 8, "method.head_out": 16, "method.code_hidden": 16},
    "mugcd": {"method.head_hidden": 16, "method.head_narrow": 8, "method.head_out": 16, "method.represent_epochs": 1},
    "protogcd": {"method.projector_hidden": 16, "method.projector_out": 8},
    "eagc": {"method.projector_hidden": 16, "method.projector_out": 8, "method.reference_epochs": 1},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_cifar10(root, rows=24)
    return root


def start(folder: Path, data: Path, method: str = "rlcd", settings: dict | None = None, **more):
    own = OF_METHOD.get(method.partition(":")[0], {}) if "," not in method else {}
    values = {
        "backbone": "test_efficientnet",
        "epochs": 2,
        "seeds": 0,
        "cache": folder / "cache",
        "runs": folder / "runs",
        **more,
    }
    return gcdbench.run(method, "cifar10", data_root=data, settings={**SETTINGS, **own, **(settings or {})}, **values)


PIXELS = ("sptnet",)
"""Methods that see pixels and therefore refuse a network that is frozen whole."""


@pytest.mark.parametrize("method", sorted({p.name for p in registry.plugins("method")}.difference(PIXELS)))
def test_every_installed_method_runs_unchanged(tmp_path, data, method):
    known = {f"method.{name}" for name in registry.load("method", method).Config.__dataclass_fields__}
    settings = {key: value for key, value in OF_METHOD.get(method, {}).items() if key in known}
    (record,) = start(tmp_path, data, method, settings)
    assert set(record.metrics) >= {"all", "base", "novel"}
    assert record.backbone["projection"]["dims"] == 16
    assert record.protocol["approximations"] == {
        "train_views": 3,
        "train_tokens": "fp32",
        "pca": 16,
        "pca_images": 60,
    }


def test_lanes_equal_runs_alone_bit_for_bit(tmp_path, data):
    shared = start(tmp_path / "lanes", data, "rlcd:paper,rlcd:released", settings={"train.precision": "fp32"})
    for method, record in zip(("rlcd:paper", "rlcd:released"), shared, strict=True):
        name, _, recipe = method.partition(":")
        alone = start(
            tmp_path / "alone" / method.replace(":", "-"),
            data,
            name,
            recipe=recipe or None,
            settings={"train.precision": "fp32"},
        )
        assert_equal_runs(record, alone[0])


def test_seeds_have_blocks_of_their_own(tmp_path, data):
    one, two = start(tmp_path, data, "rlcd", seeds=(0, 1))
    name = "tail.blocks.0.attn.qkv.weight"
    assert not torch.equal(weights(one)[name], weights(two)[name])


def test_the_projection_is_kept_with_the_run_and_decides_the_tokens(tmp_path, data):
    (record,) = start(tmp_path, data)
    kept = read_projection(Path(record.dir) / FILE)
    assert kept.digest() == record.backbone["projection"]["hash"]
    (again,) = start(tmp_path / "elsewhere", data)
    assert again.backbone["projection"] == record.backbone["projection"]
    (other,) = start(tmp_path, data, settings={"backbone.pca_images": 30})
    assert other.run_id != record.run_id
    assert other.fingerprint != record.fingerprint
    assert other.backbone["projection"]["hash"] != record.backbone["projection"]["hash"]


def test_a_projection_does_not_see_labels(tmp_path, data):
    """The rows it is fitted on are drawn by number; other classes for the same images give the same projection."""
    import pickle

    (record,) = start(tmp_path, data)
    other = tmp_path / "relabelled"
    shutil.copytree(data, other)
    for file in sorted((other / "cifar-10-batches-py").glob("data_batch_*")):
        content = pickle.loads(file.read_bytes())
        content[b"labels"] = [(label + 3) % 10 for label in content[b"labels"]]
        file.write_bytes(pickle.dumps(content, protocol=2))
    (relabelled,) = start(tmp_path / "other", other)
    assert relabelled.protocol["index_hash"] != record.protocol["index_hash"]
    assert relabelled.backbone["projection"]["hash"] == record.backbone["projection"]["hash"]


def test_rows_for_a_projection_are_drawn_once():
    assert np.array_equal(fitted_rows(10, 10), np.arange(10))
    some = fitted_rows(1000, 100)
    assert len(set(some.tolist())) == 100
    assert np.array_equal(some, fitted_rows(1000, 100))
    assert np.array_equal(some, np.sort(some))


def test_an_interrupted_run_resumes_with_its_own_projection(tmp_path, data, monkeypatch):
    """Its store is gone, and what is fitted again differs: the run and its report take the one it began with."""
    from gcdbench.prepare import pca as projecting
    from gcdbench.training.lane import Lane

    whole = start(tmp_path / "whole", data)[0]
    original = Lane.end_epoch

    def interrupted(self, *arguments):
        line = original(self, *arguments)
        if self.at.epoch == 1:
            raise KeyboardInterrupt
        return line

    with monkeypatch.context() as patch:
        patch.setattr(Lane, "end_epoch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "cut", data)
    shutil.rmtree(tmp_path / "cut" / "cache")
    fit = projecting.fit_projection

    def rounded(batches, dims):
        found = fit(batches, dims)
        return type(found)(found.fitted["mean"] + 1e-6, -found.fitted["components"], found.fitted["share"])

    monkeypatch.setattr(projecting, "fit_projection", rounded)
    (record,) = start(tmp_path / "cut", data)
    assert_resumed_equal(whole, record)
    shutil.rmtree(tmp_path / "cut" / "cache")
    monkeypatch.setenv("GCDBENCH_CACHE", str(tmp_path / "third"))
    ctx = reopen(record, SharedResources(RunEnvironment(root=data, device="cpu"))).ctx
    assert ctx.backbone_info.projection["hash"] == record.backbone["projection"]["hash"]


def test_stored_and_fresh_views_and_fp32_stores(tmp_path, data):
    """Tokens from the evaluation store are those computed in passing."""
    (kept,) = start(tmp_path, data, "kmeans")
    (stored,) = start(tmp_path / "stored", data, "kmeans", settings={"store.eval_tokens": "fp32"})
    assert stored.run_id == kept.run_id
    assert stored.metrics == kept.metrics
    (fresh,) = start(tmp_path / "fresh", data, "rlcd", settings={"store.train_views": 0})
    assert "train_views" not in fresh.protocol["approximations"]


def test_pools_of_random_views_come_from_the_store(tmp_path, data, monkeypatch):
    """A method that looks at random views of the whole pool each epoch pays for its tail only."""
    from gcdbench.backbone.feature_map import FeatureMapTrunk

    start(tmp_path, data, "kmeans")  # fits the projection and stores the views
    passes, original = [], FeatureMapTrunk.raw

    def raw(self, images):
        passes.append(len(images))
        return original(self, images)

    monkeypatch.setattr(FeatureMapTrunk, "raw", raw)
    counts = []
    for epochs in (3, 4, 7):
        start(tmp_path, data, "cms", epochs=epochs, settings=OF_METHOD["cms"])
        counts.append(len(passes))
        passes.clear()
    assert counts[0] == counts[1] == counts[2]  # more epochs add nothing


def test_a_network_without_projection(tmp_path, data):
    (record,) = start(tmp_path, data, settings={"backbone.pca": None, "backbone.pca_images": 10_000})
    assert "projection" not in record.backbone
    assert not (Path(record.dir) / FILE).exists()
    assert checkpoint.load(Path(record.dir))["lane"]["method"]["aux_token"].shape == (1, 256)


def test_the_command_line_says_what_is_wrong(cli, data):
    answer = cli("run", "--method", "rlcd", "--dataset", "cifar10", "--data-root", data, "--backbone", "resnet1")
    assert answer.code == 2
    assert "Did you mean 'resnet" in answer.stderr
    answer = cli("run", "--method", "rlcd", "--dataset", "digits", "--set", "backbone.pca=4")
    assert answer.code == 2
    assert "backbone.pca is for networks with a feature map" in answer.stderr


def test_the_dry_run(cli, tmp_path, data):
    options = ["--data-root", data, "--cache", tmp_path / "c", "--backbone", "test_efficientnet"]
    options += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    answer = cli("run", "--method", "rlcd", "--dataset", "cifar10", *options, "--dry-run", "--json")
    assert answer.code == 0, answer.stderr
    assert json.loads(answer.stdout)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_precisions_and_estimated_classes(tmp_path, data, precision):
    """K estimators make tails of their own."""
    (record,) = start(tmp_path, data, precision=precision, k="max-acc", epochs=1)
    assert record.protocol["k_source"] == "estimated"
    assert record.config["train"]["precision"] == precision


def test_an_estimate_depends_on_the_final_norm(tmp_path, data, monkeypatch):
    from gcdbench_baselines.max_acc import MaxAcc

    asked, original = [], MaxAcc.estimate

    def estimate(self, *arguments):
        asked.append(1)
        return original(self, *arguments)

    monkeypatch.setattr(MaxAcc, "estimate", estimate)
    for norm in ("own", "own", "layer"):
        start(tmp_path, data, "kmeans", {"backbone.tail_norm": norm}, k="max-acc", force=True)
    assert len(asked) == 2


def test_turns_of_a_pool_go_through_the_stored_views(tmp_path, data, monkeypatch):
    from gcdbench.prepare.environment import RunEnvironment
    from gcdbench.prepare.request import RunRequest, resolve_request
    from gcdbench.prepare.token_stores import StoreOptions, make_stores
    from gcdbench.runs.execute import open_runs
    from gcdbench.system.observer import Observer

    request = RunRequest("rlcd", "cifar10", backbone="test_efficientnet", settings=SETTINGS)
    environment = RunEnvironment(tmp_path, data, "cpu", store_options=StoreOptions.at(tmp_path / "cache"))
    ctx = next(open_runs(resolve_request(request), SharedResources(environment)))
    make_stores(ctx, Observer())
    pool = run_pool(ctx, "unlabelled", "test")
    read, original = [], ctx.source.training

    def training(plans):
        read.append(torch.cat([plan.stored[0] for plan in plans]))
        return original(plans)

    monkeypatch.setattr(ctx.source, "training", training)
    turns = [pool.features(lambda tokens: tokens[:, 0], views="train") for _ in range(4)]
    numbers = torch.stack(read[:3]).sort(0).values
    assert torch.equal(numbers, torch.arange(3)[:, None].expand_as(numbers))  # of each row all views, none twice
    assert len(set(read[0].tolist())) == 3  # another one for each row
    assert torch.equal(turns[0], turns[3])
    again = run_pool(ctx, "unlabelled", "test").features(lambda tokens: tokens[:, 0], views="train")
    assert torch.equal(again, turns[0])


def test_ranks_give_the_losses_of_one_process(tmp_path, data):
    from gcdbench.contracts import Progress
    from gcdbench.prepare.environment import RunEnvironment
    from gcdbench.prepare.request import RunRequest, resolve_request
    from gcdbench.prepare.token_stores import StoreOptions, make_stores
    from gcdbench.runs.execute import open_runs
    from gcdbench.system.observer import Observer
    from gcdbench.system.parallel.gather import shared_batch
    from gcdbench.testing.turns import in_turns
    from gcdbench.training.batches import batches, epoch_plans

    settings = {**SETTINGS, "method.aux_warmup": 0.0}
    request = RunRequest("rlcd", "cifar10", backbone="test_efficientnet", settings=settings, precision="fp64")
    environment = RunEnvironment(tmp_path, data, "cpu", store_options=StoreOptions.at(tmp_path / "cache"))
    ctx = next(open_runs(resolve_request(request), SharedResources(environment)))
    make_stores(ctx, Observer())
    stage = build_method(ctx).stages()[0]

    def losses(ranks=None):
        method = build_method(ctx)
        plans = epoch_plans(ctx, stage, 0)
        _, batch = next(batches(ctx, plans) if ranks is None else batches(ctx, plans, ranks))
        t = Progress(stage.name, 0, stage.epochs, 0, ctx.sampler.steps, torch.Generator())
        if ranks is None:
            return {name: float(term.value.detach()) for name, term in method(batch, t).items()}
        with shared_batch(ranks, len(batch.target)):
            return {name: float(term.value.detach()) for name, term in method(batch, t).items()}

    wanted = losses()
    assert "aux_ce" in wanted
    for found in in_turns(2, losses):
        assert found == pytest.approx(wanted, abs=1e-12)


# ---- fewer images ----


def test_fewer_images_are_a_part_of_more_and_keep_their_labels(tmp_path, data):
    from gcdbench.config.sections import DataConfig
    from gcdbench.data.datasets.cifar import Cifar10
    from gcdbench.prepare.opened_data import open_data

    whole, some, few = (open_data(Cifar10, data, DataConfig(images=n)) for n in (None, 80, 40))
    assert [len(side.index) for side in (whole, some, few)] == [120, 80, 40]
    assert set(few.index.items) < set(some.index.items) < set(whole.index.items)

    def labelled(side):
        return {side.index.items[row] for row in side.split.labelled}

    assert labelled(few) == labelled(whole) & set(few.index.items)
    assert len({side.hash for side in (whole, some, few)}) == 3
    classes = dict(zip(whole.index.items, whole.index.labels.tolist(), strict=True))
    assert all(classes[item] == label for item, label in zip(few.index.items, few.index.labels.tolist(), strict=True))
    assert np.array_equal(
        np.asarray(few.dataset.image("train", 5)),
        np.asarray(whole.dataset.image("train", whole.index.items.index(few.index.items[5]))),
    )
    with pytest.raises(UsageError, match=r"data\.images is 121, but CIFAR-10 has only 120"):
        open_data(Cifar10, data, DataConfig(images=121))
    assert open_data(Cifar10, data, DataConfig(images=120)).hash == whole.hash
