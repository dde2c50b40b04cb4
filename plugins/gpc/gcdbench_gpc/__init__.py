"""GPC (Zhao, Wen, Han; ICCV 2023) as a gcdbench plugin."""

from gcdbench_gpc.config import GPCConfig
from gcdbench_gpc.estimator import SplitAndMerge
from gcdbench_gpc.method import GPC

__all__ = ["GPC", "GPCConfig", "SplitAndMerge"]
