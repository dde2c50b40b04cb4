"""DCCL's number of concepts as an estimate of the number of classes, on the untrained backbone."""

from __future__ import annotations

from typing import ClassVar

from gcdbench import KEstimate, KEstimator, Pool, Task
from gcdbench_dccl.concepts import find_concepts
from gcdbench_dccl.config import DCCLConfig


class Concepts(KEstimator):
    """As many classes as there are concepts."""

    name: ClassVar[str] = "dccl"
    version: ClassVar[int] = 1

    def estimate(self, pool: Pool, task: Task, largest: int) -> KEstimate:
        """The number of concepts, within what is allowed."""
        tail = task.backbone.tail(norm=True).eval()
        features = pool.features(lambda tokens: tail(tokens)[:, 0])
        found = pool.once(lambda: find_concepts(features, pool.target, DCCLConfig(), pool.generator()))
        concepts = int(found.max(initial=-1)) + 1
        return KEstimate(min(largest, max(task.num_base, concepts)), {concepts: 1.0})
