"""GPC's estimate of the number of classes, on the untrained backbone."""

from __future__ import annotations

from typing import Any, ClassVar

from gcdbench import KEstimate, KEstimator, Pool, Task
from gcdbench.toolbox.predicting import cls_embedding, without_gaps
from gcdbench_gpc.config import GPCConfig
from gcdbench_gpc.prototypes import Rules
from gcdbench_gpc.search import Search, one_round, within
from gcdbench_gpc.space import Space

ROUNDS = 20


class SplitAndMerge(KEstimator):
    """Clusters are split and merged, round after round; the number that most of the later rounds end with."""

    name: ClassVar[str] = "gpc"
    version: ClassVar[int] = 1

    def estimate(self, pool: Pool, task: Task, largest: int) -> KEstimate:
        """The median of the second half of the rounds. Nothing is accepted by chance here."""
        c = GPCConfig()
        tail = task.backbone.tail(norm=True).eval()
        features = pool.features(cls_embedding(tail))
        target, classes = without_gaps(pool.target, task.num_base)
        missing = task.num_base - len(classes)
        search = Search(Rules(True, 0.0, c.min_rows), c.prior_scale, c.restarts, c.iterations)

        def rounds() -> dict[str, Any]:
            rows, generator = Space.of(features, c.dims)(features), pool.generator()
            tried, k = [], round(c.start_factor * max(1, task.num_base))
            for _ in range(ROUNDS):
                k = within(k, target, len(classes), largest)
                k = within(len(one_round(rows, target, k, generator, search)), target, len(classes), largest)
                tried.append(k)
            return {"tried": tried}

        tried = pool.once(rounds)["tried"]
        later = sorted(tried[ROUNDS // 2 :])
        k = min(largest, max(task.num_base, later[len(later) // 2] + missing))
        return KEstimate(k, {number: float(later.count(number)) / len(later) for number in sorted(set(later))})
