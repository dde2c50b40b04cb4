"""Training steps: one run, two methods, an ablation, stored views."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.figure import Claim, Figure, Growth, faster, seconds
from benchmarks.scene import Scene, Training
from gcdbench.data.stream import stream
from gcdbench.prepare.token_stores import make_stores
from gcdbench.system.observer import Observer
from gcdbench.training.batches import batches, epoch_plans
from gcdbench.training.method_trainer import MethodTrainer

CPU = torch.device("cpu")
Found = Figure | Claim | Growth


def one_run(scene: Scene) -> Iterator[Found]:
    """One run against the reference shape: operations, time, and the same numbers."""
    contexts, name = [scene.run(scene.subjects.methods[0])], scene.subjects.methods[0]
    ours, theirs = Training(contexts), Training(contexts, reference=True)
    pixels = theirs.pixels()
    before = {n: p.detach().clone() for n, p in ours.lanes[0].method.trained_parameters()}
    # Plain attention: the counter does not know the fused CPU kernel, which does the same work.
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as few:
            ours.ours()
        with FlopCounterMode(display=False) as many:
            theirs.theirs(pixels)
    yield _same_step(ours.lanes[0], theirs.lanes[0], before)
    images = scene.sizes.batch
    value = few.get_total_flops() / many.get_total_flops()
    detail = f"{few.get_total_flops() / images / 1e9:.1f} against {many.get_total_flops() / images / 1e9:.1f} GFLOP"
    yield Figure(f"operations per image and step, one {name} run", value, 0.83, at_least=False, detail=detail)
    value, detail = faster(lambda: theirs.theirs(pixels), ours.ours, scene.sizes.rounds)
    yield Figure(f"time per step, one {name} run", value, 1.15, detail=detail)
    yield _waiting(ours)


def _waiting(training: Training) -> Figure:
    """The share of three steps in which nothing happens but waiting for views."""
    ctx = training.ctx
    source, waited = ctx.source, 0.0
    started = time.perf_counter()
    views = stream(source.images["train"], training.plans(3), ctx.config.views.crop, source.workers, CPU)
    while True:
        asked = time.perf_counter()
        found = next(views, None)
        waited += time.perf_counter() - asked
        if found is None:
            break
        source._pass(found[1])
    total = time.perf_counter() - started
    return Figure("share of trunk passes spent waiting for views", waited / total, 0.05, False, f"{waited:.3g} s")


def _same_step(ours: MethodTrainer, theirs: MethodTrainer, before: dict[str, torch.Tensor]) -> Claim:
    """Both shapes give the same losses and, relative to the update, the same new parameters."""
    a, b = ours.means(), theirs.means()
    losses = max(abs(a[k] - b[k]) / max(1e-3, abs(b[k])) for k in b)
    renamed = {n.replace("tail.last.", "tail.blocks.0."): p for n, p in theirs.method.trained_parameters()}
    parameters = dict(ours.method.trained_parameters())
    worst = 0.0
    for name, parameter in parameters.items():
        moved = (renamed[name] - before[name]).abs().max().item()
        worst = max(worst, (parameter - renamed[name]).abs().max().item() / max(moved, 1e-8))
    good = losses < 1e-4 and worst < 1e-2 and renamed.keys() == parameters.keys()
    return Claim("a step gives the losses and parameters of the reference step", good, f"{losses:.0e}, {worst:.0e}")


def lanes(scene: Scene) -> Iterator[Found]:
    """Two methods and the rows of an ablation in lanes, against one after the other in the reference shape."""
    pixels = Training(scene.both(), reference=True).pixels()
    for name, bar, contexts in (
        (f"compare {' '.join(scene.subjects.methods)} in lanes", 2.1, scene.both()),
        ("ablation in {} lanes", 5.5, scene.rows()),
    ):
        ours, theirs = Training(contexts), Training(contexts, reference=True)
        rounds = max(1, scene.sizes.rounds - len(contexts) // 8)  # many lanes are long enough to be measured once
        value, detail = faster(lambda o=theirs: o.theirs(pixels), ours.ours, rounds)  # type: ignore[misc]
        yield Figure(name.format(len(contexts)), value, bar, detail=detail)
    together, alone = Training(scene.rows()), Training(scene.rows()[-1:])
    together.ours()
    alone.ours()
    one, other = together.lanes[-1].method.state_dict(), alone.lanes[0].method.state_dict()
    equal = all(torch.equal(one[name], other[name]) for name in one)
    yield Claim("a lane equals the same run alone bit for bit", equal)
    counts = tuple(n for n in (1, 2, 4, 8) if n <= len(together.lanes))
    trainings = [Training(scene.rows()[:n]) for n in counts]
    yield Growth("step by number of lanes", counts, tuple(seconds(t.ours) for t in trainings))


def stored_views(scene: Scene) -> Iterator[Found]:
    """An epoch on stored views against the reference epoch."""
    method = scene.subjects.methods[0]
    ctx = scene.run(method, {"store.train_views": 2})
    make_stores(ctx, Observer())
    ours, theirs = Training([ctx]), Training([scene.run(method)], reference=True)
    pixels = theirs.pixels()

    def epoch() -> None:
        for _, batch in batches(ctx, epoch_plans(ctx, ours.stage, 0)):
            ours.step(batch)

    epoch()  # the first reading compares checksums
    steps = ctx.sampler.steps
    value, detail = faster(lambda: theirs.theirs(pixels), epoch, scene.sizes.rounds, times=steps)
    yield Figure("epoch with --train-views", value, 15.0, detail=detail)


def classes(scene: Scene) -> Iterator[Found]:
    """A step and the scores by the number of classes."""
    import numpy as np

    from gcdbench.contracts import Prediction, Truth
    from gcdbench.evaluation.evaluators import ClusterAccuracy

    counts = (50, 200, 800)
    method = scene.subjects.methods[0]
    contexts = [scene.run(method, {"data.k": k}) for k in counts]
    batch = next(batches(contexts[0], Training(contexts[:1]).plans(1)))[1]
    trainings = [Training([ctx]) for ctx in contexts]
    for training in trainings:
        training.step(batch)
    costs = [min(seconds(lambda t=t: t.step(batch)) for _ in range(3)) for t in trainings]  # type: ignore[misc]
    yield Growth("method's own step by number of classes", counts, tuple(costs))
    random = np.random.default_rng(0)
    costs = []
    for k in counts:
        target = random.integers(0, k, 20_000)
        right = random.random(20_000) < 0.7
        truth, answer = Truth(target, k // 2, k), Prediction(np.where(right, target, random.integers(0, k, 20_000)))
        costs.append(min(seconds(lambda t=truth, a=answer: ClusterAccuracy()(t, a)) for _ in range(3)))  # type: ignore[misc]
    why = "optimal assignments read the K x K table"
    yield Growth("cluster accuracy of 20,000 rows by number of classes", counts, tuple(costs), detail=why)
