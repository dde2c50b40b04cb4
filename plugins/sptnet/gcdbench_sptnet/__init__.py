"""SPTNet (Wang, Vaze, Han; ICLR 2024) as a gcdbench plugin, written from its description."""

from gcdbench_sptnet.method import SPTNet, SPTNetConfig

__all__ = ["SPTNet", "SPTNetConfig"]
