"""DCCL (Pu, Zhong, Sebe; CVPR 2023) as a gcdbench plugin."""

from gcdbench_dccl.config import DCCLConfig
from gcdbench_dccl.estimator import Concepts
from gcdbench_dccl.method import DCCL

__all__ = ["DCCL", "Concepts", "DCCLConfig"]
