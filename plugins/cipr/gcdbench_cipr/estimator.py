"""CiPR's estimate of the number of classes, on the untrained backbone."""

from __future__ import annotations

from typing import Any, ClassVar

from gcdbench import KEstimate, KEstimator, Pool, Task
from gcdbench.toolbox.losses import wide
from gcdbench_cipr.class_number import class_number


class NeighbourSearch(KEstimator):
    """Selective neighbour clustering that sees the labels of most base classes, judged by the rest."""

    name: ClassVar[str] = "cipr"
    version: ClassVar[int] = 1

    def estimate(self, pool: Pool, task: Task, largest: int) -> KEstimate:
        """The number of clusters of the best partition."""
        tail = task.backbone.tail(norm=True).eval()
        features = pool.features(lambda tokens: wide(tail(tokens)[:, 0]))  # means are of CLS as it is

        def search() -> dict[str, Any]:
            found = class_number(features, pool.target, task.num_base, (task.num_base, largest))
            return {"k": found.k, "tried": found.tried}

        answer = pool.once(search)
        return KEstimate(answer["k"], answer["tried"])
