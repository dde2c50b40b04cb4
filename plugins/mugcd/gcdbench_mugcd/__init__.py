"""muGCD (Vaze, Vedaldi, Zisserman; NeurIPS 2023) as a gcdbench plugin."""

from gcdbench_mugcd.method import MuGCD, MuGCDConfig

__all__ = ["MuGCD", "MuGCDConfig"]
