from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gcdbench_uno import UNO, UNOConfig
from gcdbench_uno.losses import swapped_prediction, targets

import gcdbench
from gcdbench.config.presets import read_preset
from gcdbench.contracts import Progress
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from gcdbench.testing.recording import Recording
from gcdbench.testing.trajectory import build, replay
from gcdbench.toolbox.optim import WarmupCosine
from tests.support.tiny import batch_of, tiny_task

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "uno_trajectory.npz"
PRETRAIN, DISCOVER = Progress("pretrain", 0, 5, 0, 3), Progress("discover", 0, 10, 0, 3)
SMALL = {"projector_hidden": 16, "projector_out": 8, "heads": 2}


def sinkhorn(scores: np.ndarray, epsilon: float, iterations: int) -> np.ndarray:
    """As published: a matrix of mass one; classes to 1/K, then rows to 1/B, in turn."""
    q = np.exp(scores / epsilon).T
    q /= q.sum()
    classes, rows = q.shape
    for _ in range(iterations):
        q /= q.sum(1, keepdims=True) * classes
        q /= q.sum(0, keepdims=True) * rows
    return (q * rows).T


def cosines(rows: int = 16, classes: int = 5) -> torch.Tensor:
    return torch.rand(rows, classes, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_targets_are_labels_or_assignments_of_the_unlabelled_rows():
    labelled = torch.tensor([True, True, False, False, False, True, False, False])
    target = torch.where(labelled, torch.tensor([0, 2, 9, 9, 9, 1, 9, 9]), -1)
    logits = cosines(8)
    found = targets(logits, target, labelled, 0.05, 3).numpy()
    hidden = ~labelled.numpy()
    np.testing.assert_allclose(found[hidden], sinkhorn(logits.double().numpy()[hidden], 0.05, 3), atol=1e-5)
    np.testing.assert_array_equal(found[~hidden], np.eye(5)[[0, 2, 1]])
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)


def test_each_view_is_taught_what_the_other_says():
    labelled = torch.arange(8) < 4
    target = torch.where(labelled, torch.arange(8) % 3, -1)
    logits = cosines()
    z = logits.double().numpy()
    views = z[:8], z[8:]
    total = 0.0
    for this, other in ((0, 1), (1, 0)):
        said = np.zeros((8, 5))
        said[:4] = np.eye(5)[target[:4]]
        said[4:] = sinkhorn(views[other][4:], 0.05, 3)
        log_p = views[this] / 0.1 - np.log(np.exp(views[this] / 0.1).sum(1, keepdims=True))
        total -= (said * log_p).sum(1).mean() / 2
    assert swapped_prediction(logits, target, labelled, 0.1, 0.05, 3).item() == pytest.approx(total, rel=1e-4)


def test_stages_and_their_terms():
    method = UNO(UNOConfig(**SMALL, pretrain_epochs=3), tiny_task())
    assert [(s.name, s.epochs) for s in method.stages()] == [("pretrain", 3), ("discover", 200)]
    assert set(method(batch_of(), PRETRAIN)) == {"ce"}
    losses = method(batch_of(), DISCOVER)
    assert {name: term.weight for name, term in losses.items()} == {"cluster": 0.5, "overcluster": 0.5}
    first = {
        n for g in method.optimizers(method.stages()[0])["main"].optimizer.param_groups for n in map(id, g["params"])
    }
    assert not first & {id(p) for p in method.cluster_heads.parameters()}


def test_sizes_of_the_heads():
    method = UNO(UNOConfig(**SMALL, overcluster=4), tiny_task())
    assert method.labelled_head.weight.shape == (3, 24)
    assert [h.prototypes.weight.shape[0] for h in method.cluster_heads] == [2, 2]
    assert [h.prototypes.weight.shape[0] for h in method.over_heads] == [8, 8]


def test_the_head_with_the_smallest_loss_answers():
    method = UNO(UNOConfig(**SMALL), tiny_task()).eval()
    tokens = batch_of().tokens
    answers = []
    for best in (0, 1):
        method.head_loss.fill_(1.0)
        method.head_loss[best] = 0.5
        cls = method.tail(tokens)[:, 0]
        expected = torch.cat([method.labelled_head(cls), method.cluster_heads[best](cls)], dim=1)
        answers.append(method.logits(tokens)["main"])
        assert torch.equal(answers[-1], expected)
    assert not torch.equal(*answers)


def test_batch_norm_sees_one_view_at_a_time():
    method = UNO(UNOConfig(**SMALL), tiny_task()).train()
    batch = batch_of()
    other = batch.tokens.clone()
    other[12:] = other[12:].flip(2)  # the second view
    one, two = (method._logits(cls, method.labelled_head(cls), method.cluster_heads)[0] for cls in
                (method.features(batch.tokens), method.features(other)))  # fmt: skip
    torch.testing.assert_close(one[:12], two[:12])
    assert not torch.allclose(one[12:], two[12:])


def test_heads_are_regularised_one_by_one():
    """Prototypes of different heads have nothing to do with each other: their order must not matter."""
    values = []
    for flip in (False, True):
        method = UNO(UNOConfig(**SMALL, regularizer="ent"), tiny_task()).train()
        if flip:
            weight = method.cluster_heads[0].prototypes.weight
            weight.data = weight.data.flip(0)
        values.append(method(batch_of(), DISCOVER)["ent"].value.item())
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_losses_of_heads_are_summed_over_an_epoch():
    method = UNO(UNOConfig(**SMALL), tiny_task()).train()
    method(batch_of(), DISCOVER)
    once = method.head_loss.clone()
    assert (once > 0).all()
    method(batch_of(), DISCOVER)
    assert (method.head_loss > once).all()
    method.on_epoch_start(None, DISCOVER)
    assert (method.head_loss == 0).all()


def test_prototypes_keep_length_one():
    method = UNO(UNOConfig(**SMALL), tiny_task())
    with torch.no_grad():
        method.labelled_head.weight.mul_(3)
        method.on_step_end(batch_of(), DISCOVER)
    np.testing.assert_allclose(method.labelled_head.weight.detach().norm(dim=1).numpy(), 1, atol=1e-6)


def test_the_rate_warms_up_and_falls():
    schedule = WarmupCosine(10, 0.001)
    rates = [schedule(0.1, Progress("discover", e, 50, 0, 1)) for e in range(50)]
    assert rates[0] == pytest.approx(0.001)
    assert rates[5] == pytest.approx(0.001 + 0.099 * 5 / 9)
    assert (
        rates[9] == rates[10] == 0.1 == max(rates)
    )  # the tenth epoch has the full rate, and so has the first after it
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert schedule(0.1, Progress("discover", 0, 1, 0, 1)) == 0.1


def test_settings_that_cannot_be_meant_are_refused():
    for wrong in ({"temperature": 0}, {"heads": 0}, {"pretrain_epochs": -1}):
        with pytest.raises(UsageError, match="method"):
            UNOConfig(**wrong)


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["adapted", "gcd-authors"])
def test_conformance(recipe):
    report = run_checks("uno", recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
def test_a_run_on_digits_is_better_than_chance(tmp_path):
    settings = {"method.pretrain_epochs": 2}
    (record,) = gcdbench.run("uno", "digits", runs=tmp_path / "runs", epochs=4, settings=settings)
    assert record.metrics["all"] > 50


@pytest.mark.parametrize("recipe", ["adapted", "gcd-authors"])
@pytest.mark.parametrize("variant", ["gcd", "gcd_raw"])
def test_losses_gradients_and_weights_are_those_of_unos_code(recipe, variant):
    found = replay(UNO, GOLDEN, recipe, variant)
    names = {d.name for d in found}
    assert {"total", "cluster", "overcluster", "gradient head_lab.prototypes.weight"} <= names
    assert sum(name.startswith("gradient ") for name in names) == 29
    assert sum(name.startswith("final ") for name in names) == 41
    for deviation in found:
        assert deviation.largest <= 1e-5, deviation


def test_recorded_terms_move_and_sums_of_heads_are_the_terms():
    rows = np.load(GOLDEN)["gcd_raw.rows"]
    assert (np.ptp(rows, axis=0) > 0.5).all()
    per_step = np.diff(np.concatenate([np.zeros((6, 1, 2)), rows[:, 3:].reshape(6, 3, 2)], axis=1), axis=1)
    np.testing.assert_allclose(per_step.reshape(18, 2).mean(1), rows[:, 1], atol=1e-6)


def test_sinkhorn_is_the_recorded_one():
    arrays = np.load(GOLDEN)
    for case in range(3):
        logits = torch.from_numpy(arrays[f"sk{case}.logits"])
        nobody = torch.zeros(len(logits), dtype=torch.bool)
        found = targets(logits, torch.full((len(logits),), -1), nobody, 0.05, 3)
        np.testing.assert_allclose(found.numpy(), arrays[f"sk{case}.q"], atol=1e-9)


def test_gradients_keep_their_part_along_a_prototype():
    method = UNO(UNOConfig(**SMALL), tiny_task()).train()
    method(batch_of(), DISCOVER).total().backward()
    weight = method.labelled_head.weight
    assert ((weight.grad * weight).sum(1).abs() > 1e-5).all()


def test_features_of_length_one_are_a_setting():
    batch = batch_of()
    plain, unit = (UNO(UNOConfig(**SMALL, unit_features=on), tiny_task()).eval() for on in (False, True))
    cls = plain.tail(batch.tokens)[:, 0]
    short = torch.nn.functional.normalize(cls, dim=1)
    assert torch.equal(plain.logits(batch.tokens)["main"][:, 3:], plain.cluster_heads[0](cls))
    torch.testing.assert_close(unit.logits(batch.tokens)["main"][:, 3:], unit.cluster_heads[0](short))


def test_the_first_head_always_answers_if_asked():
    method = UNO(UNOConfig(**SMALL, answer="first"), tiny_task()).eval()
    method.head_loss.copy_(torch.tensor([1.0, 0.1]))
    cls = method.tail(batch_of().tokens)[:, 0]
    expected = torch.cat([method.labelled_head(cls), method.cluster_heads[0](cls)], dim=1)
    assert torch.equal(method.logits(batch_of().tokens)["main"], expected)


def test_recipes_are_those_of_the_scripts():
    adapted, authors = read_preset(UNO, "adapted"), read_preset(UNO, "gcd-authors")
    for preset in (adapted, authors):
        factors = {name: table.get("method", {}).get("overcluster") for name, table in preset["dataset"].items()}
        assert {name: factor for name, factor in factors.items() if factor} == {
            "cifar10": 10,
            "cifar100": 5,
            "imagenet100": 4,
        }
    assert UNOConfig().overcluster == 3
    assert UNOConfig().pretrain_decay == 1e-4
    assert adapted["default"]["train"]["weight_decay"] == 1.5e-4
    assert authors["default"]["train"] == {**adapted["default"]["train"], "batch_size": 256, "weight_decay": 1e-4}
    assert authors["default"]["method"] == {"pretrain_epochs": 0, "heads": 5, "answer": "first"}


def test_the_supervised_stage_has_a_decay_of_its_own():
    method = UNO(UNOConfig(**SMALL), tiny_task())
    decays = [method.optimizers(stage)["main"].optimizer.param_groups[0]["weight_decay"] for stage in method.stages()]
    assert decays == [1e-4, method.task.train.weight_decay]
    assert decays[1] != decays[0]


def test_a_recording_says_which_heads_it_has():
    start = build(UNO, Recording(GOLDEN), "gcd-authors", "gcd_raw")
    assert (start.method.task.num_base, start.method.task.num_classes) == (6, 10)
    assert [h.prototypes.weight.shape[0] for h in start.method.over_heads] == [12, 12]
