"""gcdbench: a benchmark harness for Generalized Category Discovery.

Importing this package imports no torch; public names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcdbench.config.sections import TrainConfig, ViewConfig
    from gcdbench.contracts import (
        Archive,
        Batch,
        ClassSplit,
        Dataset,
        Evaluator,
        Expected,
        Index,
        IntArray,
        JobState,
        KEstimate,
        KEstimator,
        Launcher,
        LaunchJob,
        Losses,
        Method,
        Optim,
        Pool,
        Prediction,
        Progress,
        Resources,
        Stage,
        Task,
        Tracker,
        Traits,
        Truth,
    )
    from gcdbench.data.data_root import missing
    from gcdbench.data.datasets.files import FileDataset, list_classes, listing, make_index
    from gcdbench.runs.api import run
    from gcdbench.system.observer import Observer
    from gcdbench.system.parallel.gather import whole_batch

__version__ = "0.3.0"

__all__ = [
    "Archive",
    "Batch",
    "ClassSplit",
    "Dataset",
    "Evaluator",
    "Expected",
    "FileDataset",
    "Index",
    "IntArray",
    "JobState",
    "KEstimate",
    "KEstimator",
    "LaunchJob",
    "Launcher",
    "Losses",
    "Method",
    "Observer",
    "Optim",
    "Pool",
    "Prediction",
    "Progress",
    "Resources",
    "Stage",
    "Task",
    "Tracker",
    "TrainConfig",
    "Traits",
    "Truth",
    "ViewConfig",
    "__version__",
    "list_classes",
    "listing",
    "make_index",
    "missing",
    "run",
    "whole_batch",
]

_HOMES = {
    "FileDataset": "gcdbench.data.datasets.files",
    "Observer": "gcdbench.system.observer",
    "TrainConfig": "gcdbench.config.sections",
    "ViewConfig": "gcdbench.config.sections",
    "list_classes": "gcdbench.data.datasets.files",
    "listing": "gcdbench.data.datasets.files",
    "make_index": "gcdbench.data.datasets.files",
    "missing": "gcdbench.data.data_root",
    "run": "gcdbench.runs.api",
    "whole_batch": "gcdbench.system.parallel.gather",
}
"""Where public names live that are not in `gcdbench.contracts`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gcdbench' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(_HOMES.get(name, "gcdbench.contracts")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
