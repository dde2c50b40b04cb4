"""CRNCD (class-relation knowledge distillation: Gu et al., ICCV 2023, adapted to GCD) as a gcdbench plugin."""

from gcdbench_crncd.config import CRNCDConfig
from gcdbench_crncd.method import CRNCD

__all__ = ["CRNCD", "CRNCDConfig"]
