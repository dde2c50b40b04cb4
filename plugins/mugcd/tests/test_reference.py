"""Against numbers computed from the description in float64: no code of the authors is public."""

from __future__ import annotations

import math

import torch
from gcdbench_mugcd import MuGCD, MuGCDConfig
from gcdbench_mugcd.losses import crossed, momentum, taught

from gcdbench.toolbox.losses import cross_entropy, negative_mean_entropy
from tests.support.recorded import close, recorded, tensor
from tests.support.tiny import tiny_task

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def test_losses():
    g = recorded(__file__, "mugcd_analytic")
    student, teacher = tensor(g["student_cosines"]), tensor(g["teacher_cosines"])
    first = student.chunk(2)[0]
    temps = float(g["student_temp"]), float(g["teacher_temp"])
    distill = taught(first, teacher.chunk(2)[0], *temps)
    close(distill, g["distill"], **EXACT)
    close(crossed(student, teacher, *temps), g["distill_two_views_crossed"], **EXACT)
    entropy = math.log(student.shape[1]) - negative_mean_entropy(first, temps[0])
    close(entropy, g["mean_entropy"], **EXACT)
    ce = cross_entropy(first, tensor(g["target"]), tensor(g["labelled"]), temps[0])
    close(ce, g["ce"], **EXACT)
    weight = float(g["sup_weight"])
    total = weight * ce + (1 - weight) * (distill - float(g["memax_weight"]) * entropy)
    close(total, g["total"], **EXACT)


def test_momenta():
    g = recorded(__file__, "mugcd_analytic")
    config, epochs = MuGCDConfig(), len(g["momentum_paper"]) - 1
    for epoch in range(epochs + 1):
        found = momentum(epoch, epochs, config.momentum_base, config.momentum_end)
        close(found, g["momentum_paper"][epoch], **EXACT)
        # BYOL's rule falls to nothing at the end; ours with an end of one.
        close(momentum(epoch, epochs, config.momentum_base, 1.0), g["momentum_byol"][epoch], **EXACT)


def test_the_teacher_follows():
    g = recorded(__file__, "mugcd_analytic")
    method = MuGCD(MuGCDConfig(head_hidden=8, head_narrow=4, head_out=8), tiny_task()).double()
    old, new = method._followed()[-1]
    with torch.no_grad():
        old.view(-1)[:5] = tensor(g["ema_start"])
    for step, keep in enumerate(g["ema_momentum"]):
        with torch.no_grad():
            new.view(-1)[:5] = tensor(g["ema_student"][step])
        method._follow(float(keep))
        close(old.view(-1)[:5], g["ema_teacher"][step], **EXACT)
