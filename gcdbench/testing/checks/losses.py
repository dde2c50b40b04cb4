"""Checks of how a method is built and of single training steps."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from gcdbench.backbone.load import on_meta
from gcdbench.contracts import Batch, Losses, Task, Term, Traits
from gcdbench.prepare.run_context import build_method
from gcdbench.system.plugin_call import plugin_call
from gcdbench.system.seeding import AmbientStream
from gcdbench.system.state_diff import difference
from gcdbench.testing.kit import Failed, check
from gcdbench.training.method_trainer import MethodTrainer


@check(
    "method",
    "builds",
    explains="The method can be built on a backbone of any width, with the same initial weights each time,"
    " also on the meta device, where parameters are counted.",
    fix="Take widths from task.backbone.embed_dim, task.num_base and task.num_classes, random numbers"
    " from task.generator, and fill no tensor whose device is `meta`.",
)
def builds(lab: Any) -> None:
    """On the tiny backbone, twice, and on the meta device."""
    if not isinstance(lab.cls.traits, Traits):
        raise Failed("traits is no gcdbench.Traits")
    if not lab.cls.recipes or not all(isinstance(recipe, str) for recipe in lab.cls.recipes):
        raise Failed("recipes must name at least one variant")
    ctx = lab.usual
    one, two = build_method(ctx), build_method(ctx)
    changed = difference(one.state_dict(), two.state_dict(), "weights")
    if changed is not None:
        raise Failed(f"built twice with the same seed, it differs in {changed}")
    odd = next((n for n, p in one.named_parameters() if not p.isfinite().all()), None)
    if odd is not None:
        raise Failed(f"the initial value of {odd} is not finite")
    config = ctx.config
    network = on_meta(config.backbone, config.views.crop)
    task = Task(len(ctx.data.split.base), ctx.k, network, config.train, steps_per_epoch=1)
    with torch.device("meta"), plugin_call(lab.subject.name, "__init__ (on the meta device)"):
        lab.cls(config.method_config, task)


def require_finite(lab: Any, batch: Batch, what: str) -> None:
    """Losses and gradients of one step of every stage."""
    for stage in lab.stages:
        trainer = lab.ready(stage)
        losses = lab.losses(trainer, batch, stage)
        _checked(losses, what)
        losses.total().backward()
        for name, parameter in trainer.method.trained_parameters():
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                raise Failed(f"{what}, the gradient of {name} is not finite (stage {stage.name})")


def _checked(losses: Any, what: str) -> None:
    if not isinstance(losses, Losses) or not losses:
        raise Failed(f"forward returned {type(losses).__name__} instead of named losses (gcdbench.Losses)")
    for name, term in losses.items():
        if not isinstance(name, str) or not name or not isinstance(term, Term) or not isinstance(term.value, Tensor):
            raise Failed(f"the loss term {name!r} is no named tensor with a weight")
        if term.value.ndim != 0 or not term.value.is_floating_point():
            raise Failed(f"the loss term '{name}' has shape {tuple(term.value.shape)}; it must be one number")
        if not term.value.isfinite():
            raise Failed(f"{what}, the loss term '{name}' is {term.value.item()}")
        if not math.isfinite(float(term.weight)):
            raise Failed(f"the weight of the loss term '{name}' is {term.weight}")
    if not losses.total().requires_grad:
        raise Failed(f"{what}, the loss has no gradient")


@check(
    "method",
    "losses",
    explains="forward returns named terms, each one finite number, whose sum has a gradient.",
    fix="Return gcdbench.Losses; reduce each term to a scalar; keep logarithms and divisions away "
    "from zero (gcdbench.toolbox.losses has the usual ones).",
    needs=("builds",),
)
def losses_are_named_and_finite(lab: Any) -> None:
    """One step of every stage."""
    lab.require_training()
    require_finite(lab, lab.batch(), "in an ordinary batch")


@check(
    "method",
    "batch-untouched",
    explains="The tensors of a batch are not changed in place: several runs train on the same batch.",
    fix="Work on a copy (tokens.clone()), and avoid functions whose names end in an underscore.",
    needs=("losses",),
)
def batch_is_not_changed(lab: Any) -> None:
    """Versions and content of the batch after a step."""
    for stage in lab.stages:
        trainer, batch = lab.ready(stage), lab.batch()
        kept = {name: getattr(batch, name).clone() for name in ("tokens", "target", "labelled", "index")}
        versions = {name: getattr(batch, name)._version for name in kept}
        trainer.step(batch, lab.progress(stage))
        for name, before in kept.items():
            now = getattr(batch, name)
            if now._version != versions[name] or not torch.equal(now, before):
                raise Failed(f"batch.{name} was changed in place in stage {stage.name}")


@check(
    "method",
    "gradients",
    explains="Every trainable parameter gets a gradient in some stage; one that never does is dead weight,"
    " or a detach too many.",
    fix="Use the parameter, or freeze it (requires_grad_(False)); look for detach() and no_grad() on "
    "its way to a loss.",
    needs=("batch-untouched",),
)
def every_parameter_learns(lab: Any) -> None:
    """Gradients over some steps of all stages."""
    moved: set[str] = set()
    trainer = MethodTrainer(lab.subject.name, build_method(lab.usual), lab.usual.compute)
    for stage in lab.stages:
        # At the beginning, in the middle and at the end: some terms come later, and what starts at zero moves first.
        for epoch in sorted({0, stage.epochs // 2, stage.epochs - 1}):
            lab.enter(trainer, stage, epoch=epoch)
            for number in range(2):
                with AmbientStream(0, "kit", "step", number):
                    trainer.step(lab.batch(number), lab.progress(stage, number, epoch))
                graded = ((name, p.grad) for name, p in trainer.method.trained_parameters())
                moved |= {name for name, grad in graded if grad is not None and bool((grad != 0).any())}
    still = [name for name, _ in trainer.method.trained_parameters() if name not in moved]
    if still:
        more = f" and {len(still) - 1} more" if len(still) > 1 else ""
        raise Failed(f"{still[0]}{more} never got a gradient")


@check(
    "method",
    "optimised",
    explains="Every trainable parameter belongs to an optimiser in some stage: others would stay as they are.",
    fix="Give all of self.trained_parameters() to the optimisers, or freeze what is not meant to learn.",
    needs=("losses",),
)
def every_parameter_is_optimised(lab: Any) -> None:
    """Parameters of the optimisers of all stages."""
    trainer = MethodTrainer(lab.subject.name, build_method(lab.usual), lab.usual.compute)
    held: set[int] = set()
    for stage in lab.stages:
        trainer.start_stage(stage)
        groups = [group for optim in trainer.optims.values() for group in optim.optimizer.param_groups]
        held |= {id(p) for group in groups for p in group["params"]}
    left = [name for name, p in trainer.method.trained_parameters() if id(p) not in held]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise Failed(f"{left[0]}{more} belongs to no optimiser")


def _with_labels(lab: Any, labelled: bool) -> Batch:
    """A batch whose rows are all labelled, or none."""
    batch = lab.batch()
    num_base = len(lab.usual.data.split.base)
    count = len(batch.target)
    target = torch.arange(count) % num_base if labelled else torch.full((count,), -1)
    found: Batch = dataclasses.replace(batch, target=target, labelled=torch.full((count,), labelled))
    return found


@check(
    "method",
    "no-labels",
    explains="A batch without a single labelled row is possible and must not give a loss or gradient that "
    "is not finite.",
    fix="Use masks instead of picking rows, and divide by the number of rows that count, at least one"
    " (gcdbench.toolbox.losses.masked_mean).",
    needs=("batch-untouched",),
)
def no_labelled_rows(lab: Any) -> None:
    """All labels hidden."""
    require_finite(lab, _with_labels(lab, False), "without labelled rows")


@check(
    "method",
    "only-labels",
    explains="A batch in which every row is labelled is possible and must not give a loss or gradient that"
    " is not finite.",
    fix="Use masks instead of picking rows, and divide by the number of rows that count, at least one"
    " (gcdbench.toolbox.losses.masked_mean).",
    needs=("batch-untouched",),
)
def only_labelled_rows(lab: Any) -> None:
    """Nothing hidden."""
    require_finite(lab, _with_labels(lab, True), "with labelled rows only")


@check(
    "method",
    "bf16",
    explains="With --precision bf16 losses, gradients and weights stay finite.",
    fix="Compute losses in float32 (gcdbench.toolbox.losses.in_float32, or .float() on features first).",
    needs=("batch-untouched",),
)
def finite_in_bf16(lab: Any) -> None:
    """Some steps of every stage under autocast, then a prediction."""
    from gcdbench.training.evaluate import predict

    ctx = lab.ctx(precision="bf16")
    for stage in lab.stages:
        trainer = lab.ready(stage, ctx)
        for number in range(2):
            _checked(lab.losses(trainer, lab.batch(number, ctx), stage, number), "in bf16")
        lab.steps(trainer, stage, 2, ctx)
        trainer.means()
        trainer.require_finite(1)
    predict(ctx, trainer.method, "unlabelled", lab.pool(ctx))
