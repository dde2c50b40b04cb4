from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gcdbench_baselines.gcd import GCD, GCDConfig
from gcdbench_baselines.kmeans import KMeans
from gcdbench_baselines.supref import SupRef, SupRefConfig

import gcdbench
from gcdbench import registry
from gcdbench.config.presets import read_preset
from gcdbench.contracts import Batch, Progress
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from gcdbench.testing.trajectory import replay
from tests.support.tiny import batch_of, tiny_task

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "gcd_trajectory.npz"
T = Progress("main", 0, 10, 0, 3)
SMALL = {"head_hidden": 16, "head_narrow": 8, "head_out": 12}


def info_nce(z: np.ndarray, temperature: float) -> float:
    """-log softmax of the other view's similarity among all others, one anchor at a time."""
    rows, total = len(z) // 2, 0.0
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        scores = np.exp([z[i] @ z[j] / temperature for j in others])
        total -= np.log(np.exp(z[i] @ z[(i + rows) % len(z)] / temperature) / scores.sum())
    return total / len(z)


def supcon(z: np.ndarray, target: np.ndarray, labelled: np.ndarray, temperature: float) -> float:
    """Mean over labelled anchors of the mean log-probability of their positives."""
    rows = len(target)
    use = [i for i in range(2 * rows) if labelled[i % rows]]
    values = []
    for i in use:
        others = [j for j in use if j != i]
        bottom = sum(np.exp(z[i] @ z[j] / temperature) for j in others)
        positive = [j for j in others if target[j % rows] == target[i % rows]]
        values.append(-np.mean([np.log(np.exp(z[i] @ z[j] / temperature) / bottom) for j in positive]))
    return float(np.mean(values))


def unit(x: torch.Tensor) -> np.ndarray:
    x = x.detach().double().numpy()
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_gcd_losses_are_the_published_ones():
    method = GCD(GCDConfig(**SMALL), tiny_task())
    batch = batch_of()
    losses = method(batch, T)
    z = unit(method.head(method.tail(batch.tokens)[:, 0]))
    assert {name: term.weight for name, term in losses.items()} == {"info_nce": 0.65, "supcon": 0.35}
    assert losses["info_nce"].value.item() == pytest.approx(info_nce(z, 1.0), rel=1e-4)
    expected = supcon(z, batch.target.numpy(), batch.labelled.numpy(), 0.07)
    assert losses["supcon"].value.item() == pytest.approx(expected, rel=1e-4)


def test_the_head_of_gcd_is_dinos():
    """MLP, length one, then cosines with directions of length one."""
    head = GCD(GCDConfig(**SMALL), tiny_task()).head
    x = torch.randn(5, 24)
    narrow = unit(head.mlp(x))
    directions = unit(head.last.weight)
    np.testing.assert_allclose(head(x).detach().numpy(), narrow @ directions.T, atol=1e-5)
    assert GCDConfig().head_out == 65_536


def test_gcd_decays_everything_with_one_rate():
    method = GCD(GCDConfig(**SMALL), tiny_task())
    (optim,) = method.optimizers(method.stages()[0]).values()
    (group,) = optim.optimizer.param_groups
    assert len(group["params"]) == len(list(method.trained_parameters()))
    assert group["weight_decay"] == 5e-5


def test_supref_learns_from_labelled_rows_only():
    method = SupRef(SupRefConfig(), tiny_task())
    batch = batch_of()
    losses = method(batch, T)
    cls = method.tail(batch.tokens)[:, 0]
    z, target, labelled = unit(cls), batch.target.numpy(), batch.labelled.numpy()
    logits = unit(cls) @ unit(method.classifier.weight).T / 0.1
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    rows = [i for i in range(len(z)) if labelled[i % len(target)]]
    ce = -np.mean([log_p[i, target[i % len(target)]] for i in rows])
    assert losses["ce"].value.item() == pytest.approx(ce, rel=1e-4)
    assert losses["supcon"].value.item() == pytest.approx(supcon(z, target, labelled, 0.07), rel=1e-4)
    # Other unlabelled rows, the same losses.
    tokens = batch.tokens.clone()
    tokens[~batch.labelled.repeat(2)] += 1.0
    again = method(Batch(tokens, batch.target, batch.labelled, batch.index), T)
    assert [t.value.item() for t in again.values()] == pytest.approx([t.value.item() for t in losses.values()])
    assert method.classifier.weight.shape == (3, 24)


def test_kmeans_trains_nothing():
    method = KMeans(KMeans.Config(), tiny_task())
    assert list(method.stages()) == []
    assert list(method.trained_parameters()) == []


@pytest.mark.parametrize(
    ("config", "values"),
    [(GCDConfig, {"supcon_temp": 0}), (GCDConfig, {"head_out": 0}), (GCDConfig, {"restarts": 0}),
     (GCDConfig, {"sup_weight": 2}), (SupRefConfig, {"student_temp": 0}), (KMeans.Config, {"iterations": 0})],
)  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused(config, values):
    with pytest.raises(UsageError, match=f"method.*{next(iter(values))}|widths"):
        config(**values)


def test_gcds_presets_are_its_script():
    train = read_preset(GCD, "paper")["default"]["train"]
    assert train == {"epochs": 200, "batch_size": 128, "lr": 0.1, "weight_decay": 5e-5}
    assert (GCDConfig().restarts, GCDConfig().iterations) == (100, 200)


@pytest.mark.kit
@pytest.mark.parametrize("name", ["kmeans", "gcd", "supref"])
def test_conformance(name):
    report = run_checks(name)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


def test_conformance_of_the_estimator():
    report = run_checks("max-acc")
    assert report.ok, report.summary()


@pytest.mark.kit
@pytest.mark.parametrize(("name", "least"), [("kmeans", 75), ("gcd", 75), ("supref", 40)])
def test_a_run_on_digits_is_better_than_chance(name, least, tmp_path):
    few = {} if name == "kmeans" else {"epochs": 2, "settings": {"method.restarts": 5}}
    (record,) = gcdbench.run(name, "digits", runs=tmp_path / "runs", **few)
    assert record.metrics["all"] > least
    assert record.metrics["ob"] > 80


@pytest.mark.parametrize(("name", "k"), [("kmeans", 100), ("gcd", 150)])
def test_many_classes_are_possible(name, k, tmp_path):
    """The rehearsal on a few rows must not refuse what the real rows can carry."""
    few = {} if name == "kmeans" else {"epochs": 1}
    settings = {"method.restarts": 1}
    (record,) = gcdbench.run(name, "digits", k=k, runs=tmp_path / "runs", settings=settings, **few)
    assert record.data["clusters"] > k * 0.8


def test_more_classes_than_images_are_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot fill them"):
        gcdbench.run("kmeans", "digits", k=5000, runs=tmp_path / "runs")


def test_max_acc_finds_the_number_of_well_separated_clusters(monkeypatch):
    """Twelve far groups, eight of them labelled in part: k-means agrees best with the labels near twelve clusters."""
    random = np.random.default_rng(0)
    centres = 4 * random.normal(size=(12, 16))
    true = np.repeat(np.arange(12), 25)
    rows = torch.from_numpy((centres[true] + 0.3 * random.normal(size=(300, 16))).astype(np.float32))

    class FakePool:
        labelled = (true < 8) & (np.arange(300) % 2 == 0)
        target = np.where(labelled, true, -1)

        def features(self, embed, views="test"):
            return rows

        def generator(self):
            return torch.Generator().manual_seed(0)

    task = tiny_task()
    object.__setattr__(task, "num_base", 8)
    found = registry.load("k-estimator", "max-acc")().estimate(FakePool(), task, 60)
    assert 10 <= found.k <= 14
    assert found.scores[found.k] == max(found.scores.values())
    assert found.scores[found.k] > 0.95
    assert all(8 <= k <= 60 for k in found.scores)


def test_gcd_reproduces_every_loss_and_weight_of_the_authors_code():
    found = replay(GCD, GOLDEN, "paper", "plain")
    assert {"total", "info_nce", "supcon", "final head.last_layer.weight_v"} <= {d.name for d in found}
    assert sum(d.name.startswith("final backbone.blocks.1.") for d in found) == 12
    for deviation in found:
        assert deviation.largest <= 1e-5, deviation


def test_recorded_terms_move():
    losses = np.load(GOLDEN)["plain.losses"]
    assert (np.ptp(losses, axis=0) > 0.1).all()


class _Rows:
    """A pool of given features; the queries are rows of another part, or rows of its own."""

    def __init__(self, features, target, queries=None, places=None):
        self.all, self.target, self.labelled = features, target, target >= 0
        self.queries, self.query_places = queries or self, places

    def __len__(self):
        return len(self.all)

    def features(self, embed, views="test"):
        return self.all

    def generator(self):
        return torch.Generator().manual_seed(0)

    def once(self, action):
        return action()


def test_gcd_scores_test_rows_by_kmeans_among_themselves():
    """As the authors do, who choose the epoch by it: training rows take no part but for names of clusters."""
    random = torch.Generator().manual_seed(0)
    centres = torch.nn.functional.normalize(torch.randn(5, 24, generator=random), dim=1)
    truth = torch.arange(60) % 5
    test = torch.nn.functional.normalize(centres[truth] + 0.02 * torch.randn(60, 24, generator=random), dim=1)
    # Training rows lie elsewhere: their means would put all test rows into the wrong clusters.
    train, target = test.roll(1, 1), np.where(np.arange(60) % 5 < 3, np.arange(60) % 5, -1)
    method = GCD(GCDConfig(**SMALL), tiny_task())
    answer = method.predict(_Rows(train, target, _Rows(test, np.full(60, -1))))
    for group in range(5):
        assert len(set(answer.cluster[truth == group])) == 1
    assert len(set(answer.cluster)) == 5
    own = KMeans(KMeans.Config(), tiny_task()).predict(_Rows(train, target, _Rows(test, np.full(60, -1))))
    assert np.array_equal(answer.cluster, own.cluster)
    # Fewer rows than classes cannot be clustered: they go to the clusters of the training rows.
    few = method.predict(_Rows(train, target, _Rows(train[:3], np.full(3, -1))))
    assert few.cluster.tolist() == [0, 1, 2]
    # Rows of the training pool itself are clustered with its labelled rows.
    inside = method.predict(_Rows(train, target, places=np.arange(60)))
    assert np.array_equal(inside.cluster[target >= 0], target[target >= 0])
