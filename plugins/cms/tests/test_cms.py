from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gcdbench_cms import CMS, CMSConfig, clustering
from gcdbench_cms import meanshift as module
from gcdbench_cms.clustering import Shifting, shift_and_cut
from gcdbench_cms.cutting import Cut, best_cut
from gcdbench_cms.losses import decoupled_contrastive
from gcdbench_cms.meanshift import neighbour_mean, shift_all, shift_in_place, shifted

import gcdbench
from gcdbench.config.presets import read_preset
from gcdbench.contracts import Progress
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from gcdbench.testing.trajectory import replay
from gcdbench.toolbox.cluster_accuracy import v2
from gcdbench.toolbox.ward import ward
from tests.support.tiny import batch_of, tiny_task

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "cms_trajectory.npz"
T = Progress("main", 0, 10, 0, 3)
SMALL = {"head_hidden": 16, "head_narrow": 8, "head_out": 12}


def unit(rows: int, dim: int = 6, seed: int = 0) -> torch.Tensor:
    x = torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(x, dim=1)


def groups(classes: int = 7, each: int = 20, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    random = np.random.default_rng(seed)
    centres = random.normal(size=(classes, 10))
    true = np.repeat(np.arange(classes), each)
    return torch.from_numpy((centres[true] + 0.1 * random.normal(size=(len(true), 10))).astype(np.float32)), true


def test_the_contrastive_loss_has_negatives_only_in_the_denominator():
    z = unit(12).double().numpy()
    total = 0.0
    for i in range(12):
        negatives = [j for j in range(12) if j % 6 != i % 6]
        positive = z[i] @ z[(i + 6) % 12] / 0.25
        total -= np.log(np.exp(positive) / sum(np.exp(z[i] @ z[j] / 0.25) for j in negatives))
    assert decoupled_contrastive(unit(12), 0.25).item() == pytest.approx(total / 12, rel=1e-4)
    assert decoupled_contrastive(unit(2), 0.25).item() == 0


@pytest.mark.parametrize("block", [1 << 26, 400])
def test_neighbours_leave_out_the_nearest_whatever_the_block(block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", block)
    z, bank = unit(9), torch.cat([unit(9), unit(40, seed=1)])
    similar = (z @ bank.T).numpy()
    expected = [bank.numpy()[np.argsort(-row)[1:9]].mean(0) for row in similar]
    np.testing.assert_allclose(neighbour_mean(z, bank, 8).numpy(), expected, atol=1e-6)


def test_a_small_bank_is_enough():
    assert neighbour_mean(unit(3), unit(3), 8).shape == (3, 6)
    assert torch.equal(neighbour_mean(unit(1), unit(1), 8), unit(1))


def test_the_length_of_a_shifted_feature_is_not_learnt_from():
    z = unit(5).requires_grad_()
    means = unit(5, seed=1)
    moved = shifted(z, means, 0.5)
    np.testing.assert_allclose(moved.detach().norm(dim=1).numpy(), 1, atol=1e-6)
    moved.sum().backward()
    length = (0.5 * z + 0.5 * means).detach().norm(dim=1, keepdim=True)
    np.testing.assert_allclose(z.grad.numpy(), (0.5 / length).expand(5, 6).numpy(), rtol=1e-5)


def test_losses_shift_towards_the_bank():
    method = CMS(CMSConfig(**SMALL), tiny_task())
    batch = batch_of()
    method.bank = unit(40, 12, seed=3)
    losses = method(batch, T)
    z = method.embed(batch.tokens)
    moved = shifted(z, neighbour_mean(z.detach(), method.bank, 8), 0.5)
    assert losses["meanshift"].value.item() == pytest.approx(decoupled_contrastive(moved, 0.25).item(), rel=1e-5)
    assert {name: term.weight for name, term in losses.items()} == {"meanshift": 0.65, "supcon": 0.35}


def test_the_bank_is_rebuilt_from_two_views_and_kept_as_it_is():
    class Views:
        calls = 0

        def features(self, embed, views="test"):
            assert views == "train"
            self.calls += 1
            return unit(30, 12, seed=self.calls)

    method, pool = CMS(CMSConfig(**SMALL), tiny_task()), Views()
    method.on_epoch_start(pool, T)
    assert method.bank.shape == (60, 12)
    assert method.bank.dtype == torch.float32
    assert pool.calls == 2
    other = CMS(CMSConfig(**SMALL), tiny_task())
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.bank, method.bank)


def test_accuracy_along_the_tree_is_cluster_accuracy():
    features, true = groups()
    tree = ward(features)
    target = np.where((np.arange(len(true)) % 3 == 0) & (true < 4), true, -1)
    known = target >= 0
    for k in (4, 5, 7, 12, 30):
        expected = v2(target[known], tree.cut(k)[known], 4).all
        assert best_cut(tree, target, 4, k, k).accuracy == pytest.approx(expected), k


def test_the_number_of_clusters_is_found_from_labelled_rows_alone():
    features, true = groups()
    target = np.where((np.arange(len(true)) % 2 == 0) & (true < 4), true, -1)
    found = best_cut(ward(features), target, 4, 4, 60)
    # Labelled rows agree as well with one fewer and one more; the heights of the merges tell which it is.
    assert found.clusters == 7
    assert [found.tried[k] for k in (6, 7, 8, 9)] == [1.0, 1.0, 1.0, 0.9]


def test_patience_ends_the_search():
    features, true = groups()
    target = np.where(true < 4, true, -1)
    assert max(best_cut(ward(features), target, 4, 4, 140, patience=10).tried) <= 6 + 11


def test_mean_shift_gathers_and_stops_when_labels_agree_no_better():
    features, true = groups(seed=1)
    target = np.where((np.arange(len(true)) % 2 == 0) & (true < 4), true, -1)
    plain = torch.nn.functional.normalize(features, dim=1)
    gathered = shift_all(plain, 8, 0.5)
    within = [float(sum(x[true == c].var(0).sum() for c in range(7))) for x in (plain, gathered)]
    assert within[1] < within[0] / 2
    found = shift_and_cut(features, target, 4, 7, 7, Shifting())
    assert len(set(found.labels().tolist())) == 7
    assert v2(true, found.labels(), 4).all == 1.0


def test_rounds_end_when_labelled_rows_agree_no_better(monkeypatch):
    from gcdbench_cms import clustering

    seen = []
    scores = [0.5, 0.7, 0.7, 0.6, 0.9]

    def cut(tree, target, num_base, smallest, largest):
        seen.append(1)
        return Cut(smallest, scores[len(seen) - 1])

    monkeypatch.setattr(clustering, "best_cut", cut)
    features, true = groups()
    found = shift_and_cut(features, true, 4, 7, 7, Shifting())
    # Gains at rounds 1 and 2; the third is as good and taken, the fourth is worse, and that is enough.
    assert (len(seen), found.cut.accuracy) == (4, 0.7)


@pytest.mark.parametrize("find", [neighbour_mean])
def test_neighbours_do_not_depend_on_autocast(find):
    z = torch.nn.functional.normalize(unit(40, 64) * 0.1 + torch.ones(64), dim=1)
    plain = find(z, z, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(find(z, z, 8), plain)


def test_presets_are_the_authors():
    tables = read_preset(CMS, "paper")["dataset"]
    facts = {n: (t["train"]["lr"], t["train"].get("lr_floor"), t["method"]["temperature"]) for n, t in tables.items()}
    assert facts["cifar100"] == facts["imagenet100"] == (0.01, 1e-3, 0.3)
    assert facts["cub"] == facts["scars"] == facts["aircraft"] == facts["herbarium19"] == (0.05, 5e-3, 0.25)
    assert "ours" in tables["cifar10"]["source"]
    assert read_preset(CMS, "unknown-k")["default"]["method"] == {"find_k": True}


def test_settings_that_cannot_be_meant_are_refused():
    for wrong in ({"temperature": 0}, {"alpha": 2}, {"neighbours": 0}, {"rounds": 0}):
        with pytest.raises(UsageError, match="method"):
            CMSConfig(**wrong)


@pytest.mark.kit
@pytest.mark.parametrize(("kind", "recipe"), [("method", "released"), ("method", "unknown-k"), ("k-estimator", None)])
def test_conformance(kind, recipe):
    report = run_checks("cms", kind, recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
def test_runs_on_digits_are_better_than_chance(tmp_path):
    (given,) = gcdbench.run("cms", "digits", runs=tmp_path / "runs", epochs=1)
    assert given.metrics["all"] > 70
    assert (given.protocol["k"], given.protocol["k_source"], given.data["clusters"]) == (10, "true", 10)
    (found,) = gcdbench.run("cms", "digits", recipe="unknown-k", runs=tmp_path / "runs", epochs=1)
    assert found.metrics["all"] > 40
    assert (found.protocol["k"], found.protocol["k_source"]) == (None, "method")
    assert found.fingerprint != given.fingerprint
    assert 5 <= found.data["clusters"] <= 20
    with pytest.raises(UsageError, match="cannot find the number of classes"):
        gcdbench.run("cms", "digits", recipe="unknown-k", runs=tmp_path / "runs", epochs=1, label_ratio=0.0)
    settings = {"method.largest_k": 3}
    with pytest.raises(UsageError, match="largest_k is 3"):
        gcdbench.run("cms", "digits", recipe="unknown-k", runs=tmp_path / "runs", epochs=1, settings=settings)
    with pytest.raises(UsageError, match="finds the number of classes itself"):
        gcdbench.run("cms", "digits", recipe="unknown-k", runs=tmp_path / "runs", epochs=1, k=12)


def naive_shift(data, count, alpha, rows, in_place):
    """Row by row; ``in_place`` lets later batches see what earlier ones have written."""
    read = data.copy()
    written = read if in_place else data.copy()
    for start in range(0, len(data), rows):
        block = range(start, min(start + rows, len(data)))
        new = {}
        for i in block:
            order = np.argsort(-(read @ read[i]), kind="stable")[1 : count + 1]
            new[i] = (1 - alpha) * read[i] + alpha * read[order].mean(0)
        for i, value in new.items():
            written[i] = value
    return written / np.linalg.norm(written, axis=1, keepdims=True)


def test_the_released_shift_writes_into_what_it_reads():
    data = unit(60, 16, seed=5).double()
    clean, aliased = shift_all(data, 8, 0.5), shift_in_place(data, 8, 0.5, rows=16)
    np.testing.assert_allclose(clean.numpy(), naive_shift(data.numpy(), 8, 0.5, 16, False), atol=1e-9)
    np.testing.assert_allclose(aliased.numpy(), naive_shift(data.numpy(), 8, 0.5, 16, True), atol=1e-9)
    assert not torch.allclose(clean, aliased, atol=1e-3)
    torch.testing.assert_close(shift_in_place(data, 8, 0.5, rows=60), clean)  # one batch sees nothing of itself
    # Labelled rows come first; the answer stands in the order of the rows.
    labelled = torch.arange(60) % 4 == 1
    order = torch.cat([torch.where(labelled)[0], torch.where(~labelled)[0]])
    expected = np.empty((60, 16))
    expected[order] = naive_shift(data[order].numpy(), 8, 0.5, 16, True)
    found = shift_in_place(data, 8, 0.5, labelled, rows=16)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)
    assert not torch.allclose(found, aliased, atol=1e-3)


def test_aliasing_starts_with_the_second_shift(monkeypatch):
    calls = []
    for name in ("shift_all", "shift_in_place"):
        original = getattr(clustering, name)
        monkeypatch.setattr(clustering, name, lambda *a, n=name, f=original: calls.append(n) or f(*a))
    features, true = groups()
    target = np.where(np.arange(len(true)) % 3 == 0, true, -1)
    target[true >= 3] = -1
    for aliased in (False, True):
        calls.clear()
        clustering.shift_and_cut(features, target, 3, 6, 6, clustering.Shifting(rounds=4, patience=9, aliased=aliased))
        assert calls == ["shift_all", *(["shift_in_place"] * 2 if aliased else ["shift_all"] * 2)]


def test_recipes_differ_in_the_shift():
    assert "default" in (released := read_preset(CMS, "released"))
    assert released["default"]["method"] == {"aliased_shift": True}
    paper = read_preset(CMS, "paper")
    assert "method" not in paper["default"]
    assert released["dataset"] == paper["dataset"]
    assert released["feature-map"] == paper["feature-map"]


def test_training_reproduces_the_authors_code_with_its_banks():
    found = replay(CMS, GOLDEN, "paper", "plain")
    assert {"total", "meanshift", "supcon", "final head.last_layer.weight_v"} <= {d.name for d in found}
    assert sum(d.name.startswith("final backbone.blocks.1.") for d in found) == 12
    for deviation in found:
        assert deviation.largest <= 1e-5, deviation
    assert (np.ptp(np.load(GOLDEN)["plain.losses"], axis=0) > 0.1).all()  # the recorded terms move
