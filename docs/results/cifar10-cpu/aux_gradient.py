"""How strongly each branch of RLCD pulls at the shared block before the first step, by the AUX token's initial spread.

    python docs/results/cifar10-cpu/aux_gradient.py DATA_ROOT WEIGHTS

Prints the norm of the block's gradient from the auxiliary terms over that from the main terms, and the norms of the two
features, averaged over four batches: on the experiment's network with a fresh block, and on the pretrained block of the
embedded digits.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import torch

from gcdbench.analysis.experiment_file import load_experiment
from gcdbench.contracts import Batch, Method, Progress
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.request import RunRequest, resolve_request
from gcdbench.prepare.run_context import build_method
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.prepare.token_stores import make_stores
from gcdbench.runs.execute import open_runs
from gcdbench.system.observer import Observer
from gcdbench.training.batches import batches, epoch_plans


def pull(method: Method, batch: Batch, t: Progress, branch: str) -> float:
    """Norm of the gradient of the block from one branch's terms."""
    method.zero_grad()
    losses = method(batch, t)
    torch.stack([term.value * term.weight for name, term in losses.items() if name.startswith(branch)]).sum().backward()
    grads = [p.grad for name, p in method.named_parameters() if name.startswith("tail.blocks") and p.grad is not None]
    return float(torch.sqrt(sum((g.square().sum() for g in grads), torch.zeros(()))))


def look(label: str, request: RunRequest, environment: RunEnvironment) -> None:
    """One line of the table."""
    ctx = next(open_runs(resolve_request(request), SharedResources(environment)))
    make_stores(ctx, Observer())
    method = build_method(ctx)
    stage = method.stages()[0]
    t = Progress(stage.name, 0, stage.epochs, 0, ctx.sampler.steps, torch.Generator())
    rows = []
    for _, batch in batches(ctx, islice(epoch_plans(ctx, stage, 0), 4)):
        ratio = pull(method, batch, t, "aux") / pull(method, batch, t, "main")
        with torch.no_grad():
            cls, aux, *_ = method.embed(batch.tokens)  # type: ignore[operator]
        rows.append((ratio, float(cls.norm(dim=1).mean()), float(aux.norm(dim=1).mean())))
    ratio, cls_norm, aux_norm = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    print(f"| {label} | {cls_norm:.1f} | {aux_norm:.1f} | {ratio:.1f} |", flush=True)


def main(root: str, weights: str) -> None:
    """The table."""
    environment = RunEnvironment(Path("runs"), Path(root), "cpu")
    experiment = load_experiment("cifar10-cpu-5000")
    common = {**experiment.common, "backbone.weights": weights, "method.aux_warmup": 0.0}
    print("| block | norm of CLS | norm of AUX | pull of AUX over main |\n|---|---|---|---|")
    for spread in (0.01, 0.1, 0.3, 1.0):
        settings = {**common, "method.aux_init_std": spread}
        request = RunRequest("rlcd", "cifar10", backbone=experiment.backbones[0], settings=settings)
        look(f"fresh (starts as identity), AUX spread {spread}", request, environment)
    look("pretrained (digits-vit), AUX spread 0.01", RunRequest("rlcd", "digits"), environment)


if __name__ == "__main__":
    main(*sys.argv[1:])
