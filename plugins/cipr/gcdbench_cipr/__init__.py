"""CiPR (Hao et al., TMLR 2024) as a gcdbench plugin: a method, and its search for the number of classes."""

from gcdbench_cipr.estimator import NeighbourSearch
from gcdbench_cipr.method import CiPR, CiPRConfig

__all__ = ["CiPR", "CiPRConfig", "NeighbourSearch"]
