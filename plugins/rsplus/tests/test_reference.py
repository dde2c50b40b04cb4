"""Against numbers recorded from AutoNovel's own step, and from its parts in the arrangement of RS+."""

from __future__ import annotations

import torch
from gcdbench_rsplus import RSPlusConfig
from gcdbench_rsplus.losses import alike, consistency, pair_loss, ramp_up

from gcdbench.contracts import Progress
from gcdbench.toolbox.losses import cross_entropy
from gcdbench.toolbox.optim import StepsPerEpoch
from tests.support.recorded import close, recorded, tensor


def test_a_step_of_rs_plus():
    g = recorded(__file__, "rsplus_step")
    first, second = tensor(g["logits"], grad=True), tensor(g["logits_bar"], grad=True)
    labelled, target = tensor(g["labelled"]), tensor(g["target"])
    pairs = alike(tensor(g["features"]), int(g["topk"]))
    assert (torch.where(pairs, 1, -1).numpy() == g["pair_label"]).all()
    ce = cross_entropy(first, target, labelled, 1.0)
    bce = pair_loss(first, second, pairs, torch.ones_like(labelled))
    agreement = RSPlusConfig().consistency_terms * consistency(first, second)
    total = ce + bce + float(g["w"]) * agreement
    for found, name in ((ce, "ce"), (bce, "bce"), (agreement, "consistency")):
        close(found, g[f"loss_{name}"])
    close(total, g["loss"])
    total.backward()
    close(first.grad, g["grad_logits"], rtol=1e-4)
    close(second.grad, g["grad_logits_bar"], rtol=1e-4)


def test_a_step_of_autonovel():
    """Two heads: labelled rows train the first, pairs of unlabelled ones the second."""
    g = recorded(__file__, "autonovel_step")
    names = ("head1", "head1_bar", "head2", "head2_bar")
    one, one_bar, two, two_bar = (tensor(g[name], grad=True) for name in names)
    labelled, target = tensor(g["labelled"]), tensor(g["target"])
    pairs = alike(tensor(g["features"]), int(g["topk"]))
    hidden = ~labelled
    assert (torch.where(pairs[hidden][:, hidden], 1, -1).numpy() == g["pair_label"]).all()
    ce = cross_entropy(one, target, labelled, 1.0)
    bce = pair_loss(two, two_bar, pairs, hidden)
    agreement = consistency(one, one_bar) + consistency(two, two_bar)
    total = ce + bce + float(g["w"]) * agreement
    for found, name in ((ce, "loss_ce"), (bce, "loss_bce"), (agreement, "loss_consistency"), (total, "loss")):
        close(found, g[name])
    total.backward()
    for head, name in zip((one, one_bar, two, two_bar), names, strict=True):
        close(head.grad, g[f"grad_{name}"], rtol=1e-4)


def test_a_step_of_incremental_autonovel():
    """The first head has an output per class, old and new; it also learns the second head's own hard answers."""
    g = recorded(__file__, "autonovel_step")
    names = ("il_head1", "il_head1_bar", "head2", "head2_bar")
    one, one_bar, two, two_bar = (tensor(g[name], grad=True) for name in names)
    labelled, target = tensor(g["labelled"]), tensor(g["target"])
    pairs = alike(tensor(g["features"]), int(g["topk"]))
    old = one.shape[1] - two.shape[1]
    answers = torch.where(labelled, -1, two.detach().argmax(1) + old)
    taught = cross_entropy(one, answers, ~labelled, 1.0)
    agreement = consistency(one, one_bar) + consistency(two, two_bar)
    rest = cross_entropy(one, target, labelled, 1.0) + pair_loss(two, two_bar, pairs, ~labelled)
    rest = rest + float(g["w"]) * agreement
    # How much it is taught has risen along the same curve to 0.05.
    added = 0.05 * float(g["w"]) / ramp_up(RSPlusConfig().consistency_weight, 1, 1) * taught
    close(added, g["il_loss_ce_add"])
    close(rest + added, g["il_loss"])
    (rest + added).backward()
    close(one.grad, g["il_grad_head1"], rtol=1e-4)


def test_schedules():
    g = recorded(__file__, "autonovel_schedule")
    for name in (n for n in g if n.startswith("w_")):
        largest, length = map(float, name.split("_")[1:])
        close([ramp_up(largest, length, e) for e in range(len(g[name]))], g[name], rtol=1e-12, atol=1e-12)
    epochs = len(g["lr_rsplus"])
    for name, milestones in (("lr_rsplus", RSPlusConfig().milestones), ("lr_autonovel", (169 / epochs,))):
        schedule = StepsPerEpoch(milestones)
        rates = [schedule(float(g[name][0]), Progress("main", e, epochs, 0, 1)) for e in range(epochs)]
        close(rates, g[name], rtol=1e-12, atol=1e-12)
