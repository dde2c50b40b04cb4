"""The one place that makes torchvision importable.

A CPU build of torch beside a CUDA build of torchvision cannot load torchvision's compiled operators, and torchvision
then fails on import because two operators it decorates do not exist. Declaring their schemas first (never calling them)
lets the import succeed; gcdbench uses neither.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

_declared: list[torch.library.Library] = []


def _compiled_operators_load() -> bool:
    """Whether torchvision's compiled library can be loaded beside this torch (as torchvision itself tries it)."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return True
    for folder in spec.submodule_search_locations:
        for library in [*Path(folder).glob("_C*.so"), *Path(folder).glob("_C*.pyd")]:
            try:
                torch.ops.load_library(str(library))
                return True
            except (OSError, RuntimeError):
                continue
    return False


def allow_torchvision() -> None:
    """From now on torchvision can be imported, on a machine without a GPU too."""
    if "torchvision" not in sys.modules and not _declared and not _compiled_operators_load():
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)  # the schemas vanish with the object
