"""Whether a method learns anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcdbench.testing.kit import Failed, check
from gcdbench.toolbox.cluster_accuracy import v2

EPOCHS = 6
DRAWS = 200


@check(
    "method",
    "beats-chance",
    explains=f"After {EPOCHS} epochs on six easy digits the method is better than any of {DRAWS} random answers.",
    fix="Look at the losses (`gcdbench run --dataset digits`), the learning rate, and whether predict"
    " uses what was learnt.",
    needs=("prediction",),
)
def beats_chance(lab: Any) -> None:
    """Cluster accuracy against random answers."""
    ctx = lab.ctx(settings={"train.epochs": EPOCHS})
    answer = lab.train(ctx)[0].prediction.cluster
    truth = ctx.truth("unlabelled")
    assert truth is not None
    random = np.random.default_rng(0)
    lucky = max(
        v2(truth.target, random.integers(truth.num_classes, size=len(truth.target)), truth.num_base).all
        for _ in range(DRAWS)
    )
    reached = v2(truth.target, answer, truth.num_base).all
    if reached <= lucky:
        raise Failed(
            f"it gets {100 * reached:.1f} % right; the best of {DRAWS} random answers gets {100 * lucky:.1f} %"
        )
