"""RLCD (Liu et al., ICML 2025) as a gcdbench plugin."""

from gcdbench_rlcd.config import RLCDConfig
from gcdbench_rlcd.method import RLCD

__all__ = ["RLCD", "RLCDConfig"]
