"""EAGC (CVPR 2026) as a gcdbench plugin."""

from gcdbench_eagc.method import EAGC, EAGCConfig

__all__ = ["EAGC", "EAGCConfig"]
