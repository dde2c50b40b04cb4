"""LegoGCD (Cao et al., CVPR 2024) as a gcdbench plugin."""

from gcdbench_legogcd.method import LegoGCD, LegoGCDConfig

__all__ = ["LegoGCD", "LegoGCDConfig"]
