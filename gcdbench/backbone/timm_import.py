"""The one place that imports timm, which imports torchvision."""

from __future__ import annotations

from types import ModuleType

from gcdbench.system.torchvision_import import allow_torchvision


def import_timm() -> ModuleType:
    """timm, importable on a machine without a GPU too."""
    allow_torchvision()
    import timm

    return timm
