"""CMS's estimate of the number of classes, on the untrained backbone."""

from __future__ import annotations

from typing import ClassVar

from gcdbench import KEstimate, KEstimator, Pool, Task
from gcdbench.toolbox.predicting import cls_embedding
from gcdbench_cms.clustering import Shifting, shift_and_cut


class CMSEstimator(KEstimator):
    """Mean shift and Ward's tree over all rows; the cut with which labelled rows agree best.

    The authors cut by the labels of the test set; here no label is read but those of labelled training rows.
    """

    name: ClassVar[str] = "cms"
    version: ClassVar[int] = 1

    def estimate(self, pool: Pool, task: Task, largest: int) -> KEstimate:
        """The number of clusters of the best cut of the best round."""
        tail = task.backbone.tail(norm=True).eval()
        features = pool.features(cls_embedding(tail))
        found = shift_and_cut(features, pool.target, task.num_base, task.num_base, largest, Shifting())
        return KEstimate(found.cut.clusters, found.cut.tried)
