"""Whether two nested states are the same, bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def difference(one: Any, two: Any, where: str = "state") -> str | None:
    """Where two states differ first; None if they are equal. Not-a-number equals itself here."""
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return None if _same(one, two) else where
    if isinstance(one, dict) and isinstance(two, dict):
        if one.keys() != two.keys():
            return where
        return next((d for k in one if (d := difference(one[k], two[k], f"{where}.{k}"))), None)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        if len(one) != len(two):
            return where
        pairs = enumerate(zip(one, two, strict=True))
        return next((d for i, (a, b) in pairs if (d := difference(a, b, f"{where}.{i}"))), None)
    both_nan = isinstance(one, float) and isinstance(two, float) and one != one and two != two
    return None if both_nan or one is two or one == two else where


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    two = two.to(one.device)
    if one.is_floating_point():
        return bool(((one == two) | (one.isnan() & two.isnan())).all())
    return bool(torch.equal(one, two))
