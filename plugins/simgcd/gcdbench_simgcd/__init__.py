"""SimGCD (Wen, Zhao, Qi; ICCV 2023) as a gcdbench plugin."""

from gcdbench_simgcd.method import SimGCD, SimGCDConfig

__all__ = ["SimGCD", "SimGCDConfig"]
