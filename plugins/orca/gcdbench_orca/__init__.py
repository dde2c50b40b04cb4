"""ORCA (Cao, Brbic, Leskovec; ICLR 2022) as a gcdbench plugin."""

from gcdbench_orca.method import ORCA, ORCAConfig

__all__ = ["ORCA", "ORCAConfig"]
