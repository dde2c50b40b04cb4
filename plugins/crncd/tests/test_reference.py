"""Against numbers recorded from the authors' code for novel class discovery."""

from __future__ import annotations

import numpy as np
import torch
from gcdbench_crncd import CRNCDConfig
from gcdbench_crncd.losses import class_relation, relation_weight
from gcdbench_uno.losses import swapped_prediction, targets

from gcdbench.contracts import Progress
from gcdbench.toolbox.losses import sinkhorn
from gcdbench.toolbox.optim import WarmupCosine
from tests.support.recorded import close, recorded, tensor


def test_distillation():
    g = recorded(__file__, "crncd_kd")
    new, old = tensor(g["new_cosines"], grad=True), tensor(g["old_cosines"])
    rows = ~tensor(g["labelled"])
    temperature, sharpness = float(g["temperature"]), float(g["kd_temperature"])
    each = class_relation(new, old, rows, temperature, sharpness, detach_weight=False)
    close(each, g["loss_per_head"])
    total = float(g["alpha"]) * each.mean()
    close(total, g["loss"])
    total.backward()
    close(new.grad, g["grad"], rtol=1e-4)
    weight = relation_weight(new, old.shape[-1], rows, temperature * sharpness)
    close(weight[..., rows], g["weight"], rtol=1e-4)
    config = CRNCDConfig()
    assert (config.student_temp, config.kd_temp, config.kd_weight) == (temperature, sharpness, float(g["alpha"]))


def test_a_detached_weight_has_another_gradient_and_the_same_loss():
    g = recorded(__file__, "crncd_kd")
    new, old = tensor(g["new_cosines"], grad=True), tensor(g["old_cosines"])
    each = class_relation(new, old, ~tensor(g["labelled"]), 0.1, 4.0, detach_weight=True)
    close(each, g["loss_per_head"])
    (float(g["alpha"]) * each.mean()).backward()
    base = old.shape[-1]
    assert not new.grad[..., base:].any()  # without the weight, novel cosines are in no term
    assert np.abs(new.grad.numpy() - g["grad"]).max() > 1e-3


def test_assignments():
    g = recorded(__file__, "crncd_sinkhorn")
    cosines = tensor(g["cosines"])
    found = sinkhorn(cosines, torch.ones(len(cosines), dtype=torch.bool), 0.05, 3)
    close(found, g["assignment"])


def test_swapped_predictions():
    """`gcd`: assigned among all classes, as here. `ncd`: unlabelled rows among novel classes only, as published."""
    g = recorded(__file__, "crncd_swapped")
    labelled, target = tensor(g["labelled"]), tensor(g["target"])
    views, heads, _, classes = g["cosines"].shape
    base = int((g["targets_ncd"][:, :, ~g["labelled"]].sum((0, 1, 2)) > 0).argmax())  # base classes get no mass
    for kind in ("gcd", "ncd"):
        cosines = tensor(g["cosines"], grad=True)
        losses = []
        for head in range(heads):
            each = [cosines[view, head] for view in range(views)]
            if kind == "gcd":
                said = [targets(view.detach(), target, labelled, 0.05, 3) for view in each]
                losses.append(swapped_prediction(torch.cat(each), target, labelled, 0.1, 0.05, 3))
            else:
                known = torch.nn.functional.one_hot(torch.where(labelled, target, 0), classes).float()
                novel = [sinkhorn(view.detach()[:, base:], ~labelled, 0.05, 3) for view in each]
                padded = [torch.nn.functional.pad(assigned, (base, 0)) for assigned in novel]
                said = [torch.where(labelled[:, None], known, found) for found in padded]
                log_p = [(view / 0.1).log_softmax(1) for view in each]
                losses.append(-0.5 * ((said[1] * log_p[0]).sum(1) + (said[0] * log_p[1]).sum(1)).mean())
            close(torch.stack(said), g[f"targets_{kind}"][:, head], rtol=1e-4, atol=1e-5)
        close(torch.stack(losses), g[f"loss_per_head_{kind}"])
        torch.stack(losses).mean().backward()
        close(cosines.grad, g[f"grad_{kind}"], rtol=1e-4, atol=1e-6)


def test_schedules():
    g = recorded(__file__, "crncd_schedule")
    config = CRNCDConfig()
    stages = {"lr_pretrain": config.pretrain_warmup, "lr_discover": config.warmup_epochs}
    for name, warmup in stages.items():
        epochs, largest = len(g[name]), config.pretrain_lr
        schedule = WarmupCosine(warmup, largest * config.adam_floor)
        rates = [schedule(largest, Progress("x", epoch, epochs, 0, 1)) for epoch in range(epochs)]
        close(rates, g[name], rtol=1e-9, atol=1e-9)
    assert len(g["lr_pretrain"]) == config.pretrain_epochs
