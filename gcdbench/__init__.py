"""gcdbench: a benchmark harness for Generalized Category Discovery.

Importing this package imports no torch; public names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcdbench.config.sections import TrainConfig
    from gcdbench.contracts import (
        Batch,
        ClassSplit,
        Dataset,
        Evaluator,
        Index,
        IntArray,
        KEstimate,
        KEstimator,
        Launcher,
        Losses,
        Method,
        Optim,
        Pool,
        Prediction,
        Progress,
        Stage,
        Task,
        Tracker,
        Traits,
        Truth,
    )
    from gcdbench.runs.api import run
    from gcdbench.system.parallel.gather import whole_batch

__version__ = "0.3.0"

__all__ = [
    "Batch",
    "ClassSplit",
    "Dataset",
    "Evaluator",
    "Index",
    "IntArray",
    "KEstimate",
    "KEstimator",
    "Launcher",
    "Losses",
    "Method",
    "Optim",
    "Pool",
    "Prediction",
    "Progress",
    "Stage",
    "Task",
    "Tracker",
    "TrainConfig",
    "Traits",
    "Truth",
    "__version__",
    "run",
    "whole_batch",
]

_HOMES = {
    "TrainConfig": "gcdbench.config.sections",
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
