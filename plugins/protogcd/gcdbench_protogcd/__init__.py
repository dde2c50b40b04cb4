"""ProtoGCD (TPAMI 2025) as a gcdbench plugin."""

from gcdbench_protogcd.method import ProtoGCD, ProtoGCDConfig

__all__ = ["ProtoGCD", "ProtoGCDConfig"]
