"""gcdbench: a benchmark harness for Generalized Category Discovery.

Importing this package imports no torch; public names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcdbench.contracts import (
        Batch,
        ClassSplit,
        Dataset,
        Evaluator,
        Index,
        KEstimate,
        KEstimator,
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
    from gcdbench.engine.run import run

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "ClassSplit",
    "Dataset",
    "Evaluator",
    "Index",
    "KEstimate",
    "KEstimator",
    "Losses",
    "Method",
    "Optim",
    "Pool",
    "Prediction",
    "Progress",
    "Stage",
    "Task",
    "Tracker",
    "Traits",
    "Truth",
    "__version__",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gcdbench' has no attribute '{name}'")
    from importlib import import_module

    home = "gcdbench.engine.run" if name == "run" else "gcdbench.contracts"
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
