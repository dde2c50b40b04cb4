"""What is kept of a step whose loss was not finite, for whoever wants to know why."""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING

from gcdbench.system.files import write_json
from gcdbench.training.batches import epoch_plans

if TYPE_CHECKING:
    from gcdbench.training.lane import Lane
    from gcdbench.training.method_trainer import NotFinite

FILE = "not-finite.json"


def write_evidence(lane: Lane, fault: NotFinite) -> str:
    """`not-finite.json`: the term, where it happened, the rows of that batch and the sums of all terms. Says so."""
    ctx, at = lane.ctx, lane.at
    # The rows of a step follow from seed, stage, epoch and step: nothing had to be remembered while training.
    plan = next(islice(epoch_plans(ctx, at.stage, at.epoch), fault.step, None))
    rows = ctx.data.order["train"][plan.rows.numpy()].tolist()
    found = [zip(n, e.values.tolist(), strict=True) for n, e in lane.trainer.sums.items()]
    sums = dict(pair for pairs in found for pair in pairs)
    path = lane.folder.path / FILE
    write_json(
        path,
        {
            "term": fault.term,
            "stage": at.stage.name,
            "epoch": at.epoch + 1,
            "step": fault.step + 1,
            "rows": rows,
            "items": [ctx.data.index.items[row] for row in rows],
            "sums": {name: value if math.isfinite(value) else str(value) for name, value in sums.items()},
        },
    )
    return f"The last checkpoint is from before this step; {path} names the batch."
