"""UNO+ (UNO: Fini et al., ICCV 2021, adapted to Generalized Category Discovery) as a gcdbench plugin."""

from gcdbench_uno.method import UNO, UNOConfig

__all__ = ["UNO", "UNOConfig"]
