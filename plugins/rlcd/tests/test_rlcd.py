"""RLCD: the recorded trajectory pins `released`, the equations pin `paper`, and every switch does what it says."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gcdbench_rlcd import RLCD, RLCDConfig

from gcdbench import registry
from gcdbench.backbone.feature_map import SplitFeatureMap
from gcdbench.backbone.timm_import import import_timm
from gcdbench.backbone.vit import SplitViT
from gcdbench.config.presets import preset_layers, read_preset
from gcdbench.config.resolve import Layer, resolve
from gcdbench.config.sections import BackboneConfig, TrainConfig
from gcdbench.contracts import Batch, Progress, Task
from gcdbench.errors import UsageError
from gcdbench.testing import run_checks
from gcdbench.testing.recording import Recording
from gcdbench.testing.trajectory import build, replay

timm = import_timm()
from timm.models.vision_transformer import VisionTransformer  # noqa: E402

FILE = Path(__file__).parents[3] / "tests" / "golden" / "rlcd_trajectory.npz"
BASE, CLASSES, ROWS = 4, 7, 16


def recipe(name: str, **changes) -> RLCDConfig:
    layers = [
        Layer(x.source, {k: v for k, v in x.values.items() if k.startswith("method.")})
        for x in preset_layers(RLCD, name, "", None)
    ]
    found = resolve(method="", dataset="", recipe=name, seed=0, method_config=RLCDConfig, layers=layers)
    return dataclasses.replace(found.config.method_config, **changes)


def make(config: RLCDConfig, classes: int = CLASSES, base: int = BASE) -> RLCD:
    torch.manual_seed(0)
    vit = VisionTransformer(img_size=8, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=0)
    for p in vit.parameters():
        torch.nn.init.normal_(p, std=0.3)
    task = Task(base, classes, SplitViT(vit), TrainConfig(epochs=10), 3, torch.Generator().manual_seed(1))
    return RLCD(config, task)


def batch(labelled: float = 0.5, seed: int = 2) -> Batch:
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randn(2 * ROWS, 5, 24, generator=random)
    mask = torch.rand(ROWS, generator=random) < labelled
    target = torch.where(mask, torch.randint(0, BASE, (ROWS,), generator=random), -1)
    return Batch(tokens, target, mask, torch.arange(ROWS))


T = Progress("main", 4, 10, 0, 3)


@pytest.mark.parametrize("variant", ["plain", "difflr"])
def test_released_reproduces_every_term_and_the_final_heads(variant):
    found = replay(RLCD, FILE, "released", variant)
    assert len(found) == 11 + 3
    for deviation in found:
        assert deviation.largest <= 1e-4, deviation


def test_features_and_logits_before_training_are_the_recorded_ones():
    recording = Recording(FILE)
    start = build(RLCD, recording, "released", "plain")
    method, split = start.method, start.backbone
    with torch.no_grad():
        cls, aux, main, auxiliary = method.embed(split.trunk(recording.batches()[0]["images"]))
    for name, ours in (
        ("cls_feature", cls),
        ("aux_feature", aux),
        ("main_logits", main),
        ("aux_logits", auxiliary),
    ):
        np.testing.assert_allclose(ours.numpy(), recording.arrays[f"step0.{name}"], atol=1e-5)


@pytest.mark.parametrize("variant", ["plain", "difflr"])
def test_recorded_terms_move(variant):
    recording = Recording(FILE)
    moves = dict(zip(recording.settings["loss_names"], np.ptp(recording.losses(variant), axis=0), strict=True))
    assert moves.pop("aux_self") > 1e-3  # a divergence of two views, small from the start
    assert min(moves.values()) > 0.1, moves


def test_one_temperature_of_the_released_code_scales_two_terms():
    """`fc_temp`: the main branch's CDR and the auxiliary cross entropy, 0.07 on Herbarium and 0.1 elsewhere."""
    tables = read_preset(RLCD, "released")["dataset"]
    assert {name for name, table in tables.items() if "aux_ce_temp" in table.get("method", {})} == {"herbarium19"}
    herbarium = tables["herbarium19"]["method"]
    assert herbarium["aux_ce_temp"] == herbarium["reg_temp"] == 0.07
    settings = Recording(FILE).settings
    recorded = RLCD.reference_config({**settings, "args": {**settings["args"], "fc_temp": 0.07}}, {})
    assert recorded["aux_ce_temp"] == recorded["reg_temp"] == 0.07
    b = batch()
    own, other = (make(recipe("released", aux_ce_temp=t)) for t in (None, 0.07))
    with torch.no_grad():
        losses = [m(b, T) for m in (own, other)]
        logits = own.embed(b.tokens)[3]
    both, target = b.labelled.repeat(2), b.target.repeat(2)
    for found, temperature in zip(losses, (0.1, 0.07), strict=True):
        expected = F.cross_entropy(logits[both] / temperature, target[both])
        assert found["aux_ce"].value.item() == pytest.approx(expected.item(), rel=1e-5)
    for name in losses[0]:
        if name != "aux_ce":
            assert losses[0][name].value.item() == losses[1][name].value.item()
    with pytest.raises(UsageError, match="aux_ce_temp"):
        RLCDConfig(aux_ce_temp=0.0)


def test_paper_values():
    c = recipe("paper")
    assert c == RLCDConfig()
    assert (c.student_temp, c.aux_temp, c.supcon_temp) == (0.07, 0.07, 0.1)
    assert (c.alpha, c.beta, c.sup_weight) == (0.5, 0.5, 0.35)
    assert (c.teacher_temp_start, c.teacher_temp_end, c.teacher_temp_epochs) == (0.07, 0.04, 30)


def test_paper_equations():
    """Every term of Eqs. 1-9 by loops over rows and classes."""
    c, b = recipe("paper"), batch()
    method = make(c)
    with torch.no_grad():
        losses = method(b, T)
        cls, aux, main, auxiliary = method.embed(b.tokens)
    tau_s, tau_t = 0.07, 0.07 + (0.04 - 0.07) * 4 / 29
    p, q = (main / tau_s).softmax(1), (main / tau_t).softmax(1)
    pa, qa = (auxiliary / tau_s).softmax(1), (auxiliary / tau_t).softmax(1)
    pb = (main[:, :BASE] / tau_s).softmax(1)
    lab = [i for i in range(ROWS) if b.labelled[i]]
    chosen = [bool(p[i].argmax() < BASE) for i in range(2 * ROWS)]
    both = [i for i in range(ROWS) if chosen[i] and chosen[i + ROWS]]

    def ce(target, prediction):
        return -(target * prediction.log()).sum()

    def consistency(q, p, i):
        return 0.5 * ce(q[i + ROWS], p[i]) + 0.5 * ce(q[i], p[i + ROWS])

    def supervised(p):
        return torch.stack([-p[i + v, b.target[i]].log() for v in (0, ROWS) for i in lab]).mean()

    def contrastive(f):
        z = F.normalize(f, dim=1)
        rows = [i + v for v in (0, ROWS) for i in lab]
        terms = []
        for i in rows:
            others = [j for j in rows if j != i]
            same = [j for j in others if b.target[j % ROWS] == b.target[i % ROWS]]
            total = torch.logsumexp(torch.stack([z[i] @ z[j] / 0.1 for j in others]), 0)
            terms.append(torch.stack([total - z[i] @ z[j] / 0.1 for j in same]).mean())
        return torch.stack(terms).mean()

    def cdr(p, rows):
        m = [
            [sum(p[i + v][k] * p[i + v] for i in rows) / sum(p[i + v][k] for i in rows) for k in range(p.shape[1])]
            for v in (0, ROWS)
        ]
        return torch.stack([1 - m[0][k] @ m[1][k] for k in range(p.shape[1])]).mean()

    mean = p.mean(0)
    expected = {
        "main_ce": (supervised(p), 0.35),
        "main_supcon": (contrastive(cls), 0.35),
        "main_self": (torch.stack([consistency(q, p, i) for i in range(ROWS)]).mean(), 0.65),
        "main_neg_entropy": (math.log(CLASSES) - ce(mean, mean), 0.65 * 2.0),
        "distill": (
            torch.stack(
                [pa[i].max() * (pa[i] * (pa[i] / pb[i]).log()).sum() for i in range(2 * ROWS) if chosen[i]]
            ).mean(),
            0.5,
        ),
        "aux_ce": (supervised(pa), 1.0),
        "aux_supcon": (contrastive(aux), 1.0),
        "aux_self": (torch.stack([consistency(qa, pa, i) for i in both]).mean(), 1.0),
        "main_cdr": (cdr(p, range(ROWS)), 0.5),
        "aux_cdr": (cdr(pa, both), 0.5),
    }
    assert 0 < len(both) < ROWS
    assert set(losses) == set(expected)
    for name, (value, weight) in expected.items():
        assert losses[name].weight == pytest.approx(weight), name
        assert losses[name].value.item() == pytest.approx(value.item(), rel=1e-4, abs=1e-5), name
    total = sum(v * w for v, w in expected.values())
    assert losses.total().item() == pytest.approx(float(total), rel=1e-4)


MAIN = {"main_ce", "main_supcon", "main_self", "main_neg_entropy"}
AUX = {"aux_ce", "aux_supcon", "aux_self"}


@pytest.mark.parametrize(
    ("row", "switches", "terms"),
    [
        ("a", {"aux": False, "distill": False, "reg_on": "none"}, MAIN),
        ("b", {"aux": False, "distill": False, "reg_on": "main"}, MAIN | {"main_cdr"}),
        ("c", {"distill": False, "reg_on": "none"}, MAIN | AUX),
        ("d", {"reg_on": "none"}, MAIN | AUX | {"distill"}),
        ("e", {"reg_on": "main"}, MAIN | AUX | {"distill", "main_cdr"}),
        ("f", {}, MAIN | AUX | {"distill", "main_cdr", "aux_cdr"}),
        ("g", {"distill": False}, MAIN | AUX | {"main_cdr", "aux_cdr"}),
        ("h", {"aux": False, "reg_on": "main"}, MAIN | {"distill", "main_cdr"}),
        (
            "SupRef",
            {"main_self": False, "aux": False, "distill": False, "reg_on": "none"},
            {"main_ce", "main_supcon"},
        ),
    ],
)
def test_rows_of_the_ablation_table(row, switches, terms):
    losses = make(recipe("paper", **switches))(batch(), T)
    assert set(losses) == terms


@pytest.mark.parametrize("name", ["cdr", "pdr", "ent", "mcc", "lerm"])
def test_regularisers_are_configuration(name):
    losses = make(recipe("paper", regularizer=name))(batch(), T)
    assert {f"main_{name}", f"aux_{name}"} <= set(losses)
    losses.total().backward()


def test_beta_inside_multiplies_the_unsupervised_shares():
    losses = make(recipe("released", beta=1.0))(batch(), T)
    assert losses["main_cdr"].weight == pytest.approx(0.65)
    assert losses["aux_cdr"].weight == pytest.approx(0.5)


@pytest.mark.parametrize("weight", ["zero", "one", "main_cos", "aux_cos", "main_prob", "aux_prob"])
def test_uncertainty_weights(weight):
    b = batch()
    method = make(recipe("paper", uncertainty=weight))
    with torch.no_grad():
        got = method(b, T)["distill"].value
        _, _, main, aux = method.embed(b.tokens)
    pa, base = (aux / 0.07).softmax(1), main[:, :BASE]
    per_row = (pa * (pa.log() - F.log_softmax(base / 0.07, 1))).sum(1)
    w = {
        "zero": torch.zeros(2 * ROWS),
        "one": torch.ones(2 * ROWS),
        "main_cos": base.max(1).values,
        "aux_cos": aux.max(1).values,
        "main_prob": (base / 0.07).softmax(1).max(1).values,
        "aux_prob": pa.max(1).values,
    }[weight]
    chosen = main.argmax(1) < BASE
    assert got.item() == pytest.approx((per_row * w)[chosen].mean().item(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("strategy", ["all", "learnable"])
def test_distillation_strategies(strategy):
    b = batch()
    method = make(recipe("paper", distill_on=strategy))
    with torch.no_grad():
        got = method(b, T)["distill"].value
        _, _, main, aux = method.embed(b.tokens)
    pa = (aux / 0.07).softmax(1)
    per_row = (pa * (pa.log() - F.log_softmax(main[:, :BASE] / 0.07, 1))).sum(1)
    if strategy == "all":
        expected = (per_row * pa.max(1).values).mean()
    else:
        mass = (main / 0.07).softmax(1)[:, :BASE].sum(1)
        expected = (per_row * mass / mass.mean()).mean()
    assert got.item() == pytest.approx(expected.item(), rel=1e-4)


def test_kl_and_cross_entropy_have_the_same_gradient():
    gradients = []
    for kind in ("kl", "cross_entropy"):
        method = make(recipe("paper", distill_loss=kind, student_temp=1.0, aux_temp=1.0))
        method(batch(), T)["distill"].value.backward()
        gradients.append(method.main_head.weight.grad)
    assert gradients[0].abs().max() > 1e-3
    assert torch.allclose(*gradients, rtol=1e-3, atol=1e-6)


def test_distillation_does_not_teach_the_auxiliary_head():
    method = make(recipe("paper"))
    method(batch(), T)["distill"].value.backward()
    assert method.aux_head.weight.grad is None
    assert method.main_head.weight.grad.abs().sum() > 0


def test_labelled_rows_join_the_auxiliary_branch_only_if_asked():
    logits = torch.zeros(4, CLASSES)
    logits[[0, 1, 3], BASE] = 1.0  # only the second view of row 0 is predicted base
    logits[2, 0] = 1.0
    labelled = torch.tensor([True, False])
    method = make(recipe("paper"))
    assert method._pseudo_base(logits, labelled).tolist() == [False, False, True, False]
    method.config = recipe("paper", pseudo_base="predicted_or_labelled")
    assert method._pseudo_base(logits, labelled).tolist() == [True, False, True, False]


@pytest.mark.parametrize("name", ["paper", "released"])
@pytest.mark.parametrize("labelled", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("push", ["base", "novel", "one"])
def test_finite_on_every_edge(name, labelled, push):
    """No labelled row, only labelled rows, empty pseudo-base set, everything pseudo-base, absent classes."""
    method = make(recipe(name))
    b = batch(labelled)
    b = dataclasses.replace(b, tokens=b.tokens[:1] + 0.05 * b.tokens)  # nearly equal rows land in the same class
    wanted = {"base": slice(0, BASE), "novel": slice(BASE, None), "one": slice(0, 1)}[push]
    with torch.no_grad():
        mean = F.normalize(method.embed(b.tokens)[0], dim=1).mean(0)
        method.main_head.weight.copy_(0.1 * method.main_head.weight - mean)
        method.main_head.weight[wanted] += 2 * mean
        found = method.embed(b.tokens)[2].argmax(1)
    assert set(found.tolist()) <= set(range(CLASSES)[wanted])
    losses = method(b, T)
    losses.total().backward()
    assert all(torch.isfinite(term.value) for term in losses.values())
    assert all(torch.isfinite(p.grad).all() for p in method.parameters() if p.grad is not None)


@pytest.mark.parametrize(("classes", "base"), [(4, 4), (5, 4), (40, 4), (1, 1)])
def test_any_number_of_classes(classes, base):
    method = make(recipe("paper"), classes, base)
    b = dataclasses.replace(batch(), target=batch().target.clamp(max=base - 1))
    assert torch.isfinite(method(b, T).total())


def test_every_trained_parameter_gets_a_gradient():
    for name in ("paper", "released"):
        method = make(recipe(name))
        method(batch(), T).total().backward()
        assert all(p.grad is not None for _, p in method.trained_parameters())


def test_difflr_groups():
    method = make(recipe("released", param_groups="difflr"))
    groups = method.optimizers(method.stages()[0])["main"].optimizer.param_groups
    assert [g["lr"] for g in groups] == pytest.approx([0.01, 0.1])
    assert all(g["weight_decay"] == 5e-5 for g in groups)


def test_predictions_report_both_branches():
    class FakePool:
        @property
        def queries(self):
            return self

        def features(self, embed, views="test"):
            with torch.no_grad():
                return torch.cat([embed(x) for x in batch().tokens.split(5)])

    method = make(recipe("paper"))
    answer = method.predict(FakePool())
    with torch.no_grad():
        _, _, main, aux = method.embed(batch().tokens)
    assert (answer.cluster == main.argmax(1).numpy()).all()
    assert (answer.base["main"] == main[:, :BASE].argmax(1).numpy()).all()
    assert (answer.base["aux"] == aux.argmax(1).numpy()).all()
    np.testing.assert_allclose(answer.confidence, (main / 0.07).softmax(1).amax(1).numpy(), atol=1e-5)


def test_it_is_registered():
    assert registry.load("method", "rlcd") is RLCD


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_conformance(recipe):
    report = run_checks("rlcd", recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


def on_feature_map(config: RLCDConfig) -> RLCD:
    """On a fresh block that starts as identity, as behind a network with a feature map."""
    network = timm.create_model("test_efficientnet", num_classes=0)
    backbone = SplitFeatureMap(network, 32, BackboneConfig("test_efficientnet"))
    task = Task(BASE, CLASSES, backbone, TrainConfig(epochs=10), 3, torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    return RLCD(config, task)


def pull(method: RLCD, given: Batch, branch: str) -> float:
    """Norm of the gradient of the block from one branch's terms."""
    method.zero_grad()
    terms = [t.value * t.weight for name, t in method(given, T).items() if name.startswith(branch)]
    torch.stack(terms).sum().backward()
    grads = [p.grad for name, p in method.tail.named_parameters() if p.grad is not None]
    return float(torch.sqrt(sum(g.square().sum() for g in grads)))


@pytest.mark.parametrize(("spread", "low", "high"), [(0.01, 30, 1000), (1.0, 0, 5)])
def test_a_small_aux_token_drives_a_fresh_block(spread, low, high):
    """Why the preset for feature maps has a larger one: what a cosine passes back grows as its vector shrinks."""
    method = on_feature_map(recipe("paper", aux_init_std=spread, reg_on="none", distill=False))
    given = batch()
    tokens = torch.randn(2 * ROWS, 5, 256, generator=torch.Generator().manual_seed(3))
    given = dataclasses.replace(given, tokens=tokens)
    assert low < pull(method, given, "aux") / pull(method, given, "main") < high


def test_the_auxiliary_branch_can_start_later():
    method = make(recipe("paper", aux_warmup=0.5))
    early, late = (set(method(batch(), dataclasses.replace(T, epoch=e))) for e in (4, 5))
    assert early == {"main_ce", "main_supcon", "main_self", "main_neg_entropy", "main_cdr"}
    assert late == set(make(recipe("paper"))(batch(), T))
    with pytest.raises(UsageError, match=r"method\.aux_warmup is 2"):
        recipe("paper", aux_warmup=2.0)


def test_aux_can_start_from_cls():
    method = on_feature_map(recipe("paper", aux_start="cls", aux_init_std=0.0))
    tokens = torch.randn(6, 5, 256, generator=torch.Generator().manual_seed(3))
    cls, aux, *_ = method.embed(tokens)
    assert torch.equal(cls, aux)  # until the block learns
    assert torch.equal(method.features(tokens), cls)
