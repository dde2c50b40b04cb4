"""Against numbers recorded from the authors' code."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from gcdbench_cipr import CiPR, CiPRConfig
from gcdbench_cipr.class_number import class_number, scaled
from gcdbench_cipr.neighbours import chained, nearest_other
from gcdbench_cipr.snc import hierarchy

from gcdbench.backbone.timm_import import import_timm
from gcdbench.backbone.vit import SplitViT
from gcdbench.config.sections import TrainConfig
from gcdbench.contracts import Batch, Progress, Task
from gcdbench.system.device import Compute
from gcdbench.toolbox.losses import info_nce, supervised_contrastive
from gcdbench.training.method_trainer import MethodTrainer
from tests.support.recorded import close, recorded, tensor

import_timm()
from timm.models.vision_transformer import VisionTransformer  # noqa: E402


def test_selective_neighbour_clustering():
    g = recorded(__file__, "cipr_snc")
    for case in json.loads(str(g["config"]))["cases"]:
        features, target = tensor(g[f"{case}.features"]), g[f"{case}.target"]
        nearest = nearest_other(features)
        np.testing.assert_array_equal(nearest, g[f"{case}.nearest"])
        np.testing.assert_array_equal(chained(nearest, features, target), g[f"{case}.neighbours"])
        found = hierarchy(features, target)
        np.testing.assert_array_equal(np.stack(found.levels, 1), g[f"{case}.partitions"])
        assert found.counts == g[f"{case}.counts"].tolist()
        asked = [n for n in g if n.startswith(f"{case}.asked") and not n.endswith("distances")]
        assert asked
        for name in asked:
            clusters, distances = int(name.split("asked")[1]), []
            list(found.joined(found.from_level(clusters), clusters, distances))
            np.testing.assert_array_equal(found.cut(clusters), g[name])
            close(np.array(distances), g[f"{name}.distances"][:, 0], rtol=0, atol=1e-5)


def test_losses():
    g = recorded(__file__, "cipr_losses")
    labelled, target, pseudo = (tensor(g[name]) for name in ("labelled", "target", "pseudo"))
    config, everyone = CiPRConfig(), torch.ones(len(labelled), dtype=torch.bool)

    def terms() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        rows = tensor(g["features"], grad=True)
        z = rows.transpose(0, 1).flatten(0, 1)  # rows first to views first
        supervised = supervised_contrastive(z, target, labelled, config.supcon_temp)
        own = config.pseudo_weight * supervised_contrastive(z, pseudo, everyone, config.pseudo_temp)
        return rows, {
            "supervised": supervised,
            "self": info_nce(z, 1.0),
            "pseudo_term": own,
            "total": supervised + own,
            "total_warmup": supervised + info_nce(z, 1.0),
        }

    for name, value in terms()[1].items():
        close(value, g[name])
    unit = g["features"]
    for name, own in (("supervised", "supervised"), ("self", "self"), ("pseudo", "pseudo_term"), ("total", "total")):
        rows, found = terms()
        found[own].backward()
        # Ours normalises inside, so that the part of the gradient along each feature is gone.
        expected = g[f"grad.{name}"]
        expected = expected - (expected * unit).sum(-1, keepdims=True) * unit
        close(rows.grad, expected, rtol=1e-5, atol=1e-6)


def test_number_of_classes():
    g = recorded(__file__, "cipr_class_number")
    base = int(g["target"].max()) + 1
    features, target = tensor(g["features"]), g["target"]
    share = json.loads(str(g["config"]))["ratio_of_classes_shown"]
    np.testing.assert_array_equal((target >= 0) & (target < int(share * base)), g["shown"])
    found = class_number(features, target, base, (1, len(target)), share)
    assert found.k == g["estimate"]
    assert found.between == (g["level_before"], g["level_after"])
    seen = np.where(g["shown"], target, -1)
    np.testing.assert_array_equal(np.stack(hierarchy(features, seen).levels, 1), g["partitions"])
    for name, scored in (("levels", found.levels), ("merges", found.merges)):
        assert scored.counts == g[f"{name}.count"].tolist()
        np.testing.assert_array_equal(scored.accuracy, g[f"{name}.accuracy"])
        close(scored.silhouette, g[f"{name}.silhouette"], atol=1e-6)
        close(scaled(scored.silhouette), g[f"{name}.silhouette_scaled"], atol=1e-6)
        close(scaled(scored.accuracy), g[f"{name}.accuracy_scaled"], atol=1e-6)
        close(scored.score, g[f"{name}.score"], atol=2e-6)


class Rows:
    """The recorded training rows; what is clustered are the images of the test view."""

    def __init__(self, trunk: SplitViT, images: torch.Tensor, target: np.ndarray) -> None:
        self.tokens = trunk.trunk(images)
        self.index, self.target = np.arange(len(target)), target

    @torch.no_grad()
    def features(self, embed, views="test"):
        return embed(self.tokens)

    def once(self, action):
        return action()


@pytest.fixture
def replayed():
    """The method at the recording's start, and the recording."""
    g = recorded(__file__, "cipr_trajectory")
    s = json.loads(str(g["config"]))
    vit = VisionTransformer(**s["vit"])
    weights = {n.removeprefix("init."): tensor(v) for n, v in g.items() if n.startswith("init.")}
    vit.load_state_dict({n.removeprefix("backbone."): v for n, v in weights.items() if n.startswith("backbone.")})
    split = SplitViT(vit)
    train = TrainConfig(
        epochs=s["epochs"],
        batch_size=s["batch"],
        lr=s["lr"],
        weight_decay=s["weight_decay"],
        momentum=s["momentum"],
        lr_floor=s["lr_floor_absolute"] / s["lr"],
    )
    head = {f"head_{name}": width for name, width in s["head"].items()}
    config = CiPRConfig(head_lr=s["lr_head"], partition=s["partition"], **head)
    steps = len(g["rows"][0])
    method = CiPR(config, Task(s["base_classes"], s["classes"], split, train, steps, torch.Generator().manual_seed(0)))
    state = method.state_dict()
    for name, own in method.reference_names().items():
        state[own].copy_(weights[name])
    return method, split, g, s


def test_a_trajectory(replayed):
    method, split, g, s = replayed
    images = {name: tensor(g[f"images.{name}_x16"]).float() / 16 for name in ("test", "view1", "view2")}
    labelled = torch.from_numpy(g["labelled"])
    target = np.where(g["labelled"], g["labels"], -1)
    pool = Rows(split, images["test"], target)
    tails = {f"backbone.blocks.{split.start}.": "tail.blocks.0."}
    method.eval()
    close(pool.features(method.features), g["step0.backbone"], atol=1e-4)
    embedding = torch.nn.functional.normalize(method.head(pool.features(method.features)), dim=1)
    close(embedding, g["step0.embedding"], atol=1e-4)
    (stage,) = method.stages()
    trainer = MethodTrainer("cipr", method, Compute(torch.device("cpu"), "fp32"))
    trainer.start_stage(stage)
    names, seen = [str(name) for name in g["loss_names"]], []
    method.register_forward_hook(lambda module, inputs, losses: seen.append(losses))
    for epoch, batches in enumerate(g["rows"]):
        t = Progress(stage.name, epoch, stage.epochs, 0, len(batches))
        trainer.start_epoch(t)
        method.eval()
        found = hierarchy(pool.features(method.features), target)
        np.testing.assert_array_equal(np.stack(found.levels, 1), g[f"epoch{epoch}.partitions"])
        method.on_epoch_start(pool, t)
        np.testing.assert_array_equal(method.pseudo.numpy(), g[f"epoch{epoch}.partitions"][:, s["partition"]])
        method.train()
        for step, rows in enumerate(batches):
            number = epoch * len(batches) + step
            where = torch.from_numpy(rows)
            tokens = split.trunk(torch.cat([images["view1"][where], images["view2"][where]]))
            with torch.no_grad():
                plain = info_nce(method.head(method.features(tokens)), 1.0)
            batch = Batch(tokens, torch.from_numpy(target)[where], labelled[where], where)
            trainer.step(batch, Progress(stage.name, epoch, stage.epochs, step, len(batches)))
            losses = seen.pop()
            values = {
                "total": losses.total(),
                "supervised": losses["supcon"].value,
                "pseudo": losses["pseudo"].value * losses["pseudo"].weight,
                "self": plain,
            }
            for column, name in enumerate(names):
                close(values[name], g["losses"][number, column], rtol=1e-4, atol=1e-4)
            rates = [group["lr"] for group in trainer.optims["main"].optimizer.param_groups]
            close(np.array(rates), g["lr"][number], rtol=1e-9, atol=1e-9)
    method.eval()
    close(pool.features(method.features), g["final.backbone"], atol=1e-4, rtol=1e-4)
    np.testing.assert_array_equal(hierarchy(tensor(g["final.backbone"]), target).cut(s["classes"]), g["final.clusters"])
    own = {**method.reference_names()}
    compared = 0
    for name in (n.removeprefix("final.") for n in g if n.startswith(("final.head", "final.backbone."))):
        if name.endswith("weight_g"):
            continue
        mine = own.get(name) or tails[name[: name.index(".", 16) + 1]] + name[name.index(".", 16) + 1 :]
        close(method.state_dict()[mine], g[f"final.{name}"], rtol=1e-4, atol=1e-4)
        compared += 1
    assert compared >= 5
