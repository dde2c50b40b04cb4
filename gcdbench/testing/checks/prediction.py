"""Checks of a method's predictions."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from gcdbench.contracts import Method, Prediction
from gcdbench.prepare.pool import ImagePool, PoolOptions, PoolRows
from gcdbench.prepare.run_context import RunContext
from gcdbench.system.state_diff import difference
from gcdbench.testing.easy import TWINS, SortedDigits
from gcdbench.testing.kit import Failed, NotApplicable, check
from gcdbench.testing.positions import CHEATS, by_embedding, chance
from gcdbench.toolbox.cluster_accuracy import v2
from gcdbench.training.evaluate import predict


def require_valid(ctx: RunContext, answer: Prediction) -> None:
    """Classes in range; shapes and types are checked by the core."""
    limit = ctx.k if not ctx.finds_k else len(ctx.data.split.target)
    if answer.cluster.max() >= limit:
        raise Failed(f"a row was put into class {answer.cluster.max()}, but classes are numbered 0 to {limit - 1}")
    if answer.confidence is not None:
        low, high = float(answer.confidence.min()), float(answer.confidence.max())
        if not (low >= 0 and high <= 1 + 1e-5):
            raise Failed(f"confidences range from {low:.3g} to {high:.3g} instead of within 0 and 1")
    num_base = len(ctx.data.split.base)
    for branch, values in answer.base.items():
        if len(values) and not 0 <= values.min() <= values.max() < num_base:
            raise Failed(f"base classes '{branch}' are not numbered 0 to {num_base - 1}")


def _same(one: Prediction, two: Prediction) -> bool:
    if (one.confidence is None) != (two.confidence is None):
        return False
    if one.confidence is not None and not np.array_equal(one.confidence, two.confidence):  # type: ignore[arg-type]
        return False
    return np.array_equal(one.cluster, two.cluster) and all(
        name in two.base and np.array_equal(values, two.base[name]) for name, values in one.base.items()
    )


@check(
    "method",
    "prediction",
    explains="predict gives one class for every query row, a whole number from 0 to K - 1, and if any "
    "confidences within 0 and 1.",
    fix="Answer for pool.queries, in its order; return gcdbench.Prediction with integer numpy arrays.",
    needs=("builds",),
    after=("batch-untouched",),
)
def prediction_is_valid(lab: Any) -> None:
    """Of a method that has seen a few steps."""
    answer = predict(lab.usual, lab.warm(), "unlabelled", lab.pool())
    require_valid(lab.usual, answer)


@check(
    "method",
    "prediction-repeats",
    explains="Asked twice, predict answers the same.",
    fix="Take random numbers from pool.generator(), which is the same at each call; turn dropout off "
    "in evaluation mode.",
    needs=("prediction",),
)
def prediction_repeats(lab: Any) -> None:
    """The same method, the same pool."""
    method = lab.warm()
    one, two = (predict(lab.usual, method, "unlabelled", lab.pool()) for _ in range(2))
    if not _same(one, two):
        wrong = int((one.cluster != two.cluster).sum())
        what = f"in {wrong} of {len(one.cluster)} rows" if wrong else "in confidences or base classes"
        raise Failed(f"the second answer differs {what}")


@check(
    "method",
    "prediction-keeps-state",
    explains="predict changes neither weights nor buffers nor extra state: a run may be evaluated after "
    "any epoch without changing what follows.",
    fix="Keep what predict needs in local variables; update running values in forward or on_step_end.",
    needs=("prediction",),
)
def prediction_changes_nothing(lab: Any) -> None:
    """State before and after."""
    method: Method = lab.warm()
    before = copy.deepcopy(method.state_dict())
    trainable = [name for name, _ in method.trained_parameters()]
    predict(lab.usual, method, "unlabelled", lab.pool())
    changed = difference(before, method.state_dict())
    if changed is not None:
        raise Failed(f"predict changed {changed}")
    if [name for name, _ in method.trained_parameters()] != trainable:
        raise Failed("predict changed which parameters are trained")
    if method.training:
        raise Failed("predict turned on training mode")


class _Reordered(ImagePool):
    """The same rows in another order, or some of them."""

    def __init__(self, pool: ImagePool, rows: np.ndarray) -> None:
        queries = pool.queries
        asked = PoolRows(queries._part, queries.index[rows], queries.target[rows], queries.labelled[rows])
        inner = ImagePool(asked, queries._source, PoolOptions(queries._batch_size, queries._seed))
        own = PoolRows(pool._part, pool.index, pool.target, pool.labelled)
        super().__init__(own, pool._source, PoolOptions(pool._batch_size, pool._seed), inner)


@check(
    "method",
    "row-order",
    explains="An inductive method says the same of a row whichever other rows are asked about, in whichever order.",
    fix="Compute each row's answer from that row alone, or declare Traits(inductive=False).",
    needs=("prediction-repeats",),
)
def order_does_not_matter(lab: Any) -> None:
    """All query rows, shuffled ones, and some of them."""
    if not lab.cls.traits.inductive:
        raise NotApplicable("the method is not inductive: a row's answer may depend on the others")
    method, pool = lab.warm(), lab.pool()
    whole = predict(lab.usual, method, "unlabelled", pool).cluster
    shuffled = np.random.default_rng(0).permutation(len(whole))
    for rows, what in ((shuffled, "in another order"), (np.sort(shuffled[: len(whole) // 3]), "without the others")):
        answer = predict(lab.usual, method, "unlabelled", _Reordered(pool, rows)).cluster
        wrong = int((answer != whole[rows]).sum())
        if wrong:
            raise Failed(f"asked {what}, it answers differently for {wrong} of {len(rows)} rows")


@check(
    "method",
    "unseen-rows",
    explains="Rows that were not in training can be asked about (eval.rows=test). An inductive method says"
    " the same of an image under another row number.",
    fix="Look at the tokens of pool.queries, never at row numbers; pool.query_places is None when the"
    " rows are not in the pool.",
    needs=("prediction-repeats",),
    after=("row-order",),
)
def unseen_rows(lab: Any) -> None:
    """The test part, which holds the images of some unlabelled training rows."""
    ctx = lab.ctx(settings={"eval.rows": "test"})
    method = lab.warm()
    answer = predict(ctx, method, "test")
    require_valid(ctx, answer)
    if lab.cls.traits.inductive:
        known = predict(lab.usual, method, "unlabelled").cluster[TWINS]
        wrong = int((answer.cluster != known).sum())
        if wrong:
            raise Failed(f"{wrong} of {len(known)} images got another class as test rows than as training rows")


@check(
    "method",
    "wrong-k",
    explains="The number of classes a method is given may be too small or too large, down to the base classes alone.",
    fix="Take task.num_classes as it is; it is at least task.num_base and need not fit the data.",
    needs=("prediction",),
)
def wrong_k(lab: Any) -> None:
    """Fewer and more classes than there are: a step of every stage and a prediction."""
    if lab.usual.finds_k:
        raise NotApplicable("the method finds the number of classes itself")
    base, true = len(lab.usual.data.split.base), lab.usual.data.split.num_classes
    for k in (base, base + 1, true + 3):
        ctx = lab.ctx(k=k)
        method = lab.warm(ctx)
        answer = predict(ctx, method, "unlabelled", lab.pool(ctx))
        require_valid(ctx, answer)
        if not all(p.isfinite().all() for p in method.parameters()):
            raise Failed(f"with K = {k} a weight is not finite after two steps")


@check(
    "method",
    "position",
    explains="Where rows stand says nothing about their class: answers by numbers, order or the moment at which the"
    " harness shows an image are no better than chance, though the data is sorted by class.",
    fix="Nothing in the method: this is a check of gcdbench itself, with methods that cheat. Report a failure.",
    needs=("builds",),
)
def position_says_nothing(lab: Any) -> None:
    """Methods that cheat by position, on the pools of the real harness."""
    ctx = lab.ctx(dataset=SortedDigits)
    split, pool = ctx.data.numbered, lab.pool(ctx)
    target, classes = split.target[pool.queries.index], split.num_classes
    for what, cheat in {**CHEATS, "when they are shown": by_embedding}.items():
        answer = cheat(pool, classes)
        reached, limit = v2(target, answer, len(split.base)).all, chance(target, answer, len(split.base))
        if reached > limit:
            guessed = f"{100 * reached:.1f} % can be guessed; chance gives at most {100 * limit:.1f} %"
            raise Failed(f"by {what} alone, {guessed}")
