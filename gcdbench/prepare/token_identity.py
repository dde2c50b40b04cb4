"""What decides the numbers of a trunk's tokens: the one place that everything goes by that is kept on disk.

A further option of views or trunk that changes tokens belongs here, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from gcdbench.backbone.load import BackboneInfo
from gcdbench.config.resolve import RunConfig
from gcdbench.contracts import Dataset
from gcdbench.data.store.packed_images import image_facts


@dataclass(frozen=True)
class TokenIdentity:
    """Views and trunk, without the images."""

    resize: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    architecture: str
    weights: str
    """Hash of the weights."""
    precision: str
    projection: str | None
    """Hash of the PCA behind the trunk, if there is one."""

    @staticmethod
    def of(config: RunConfig, info: BackboneInfo) -> TokenIdentity:
        """Of a run."""
        views = config.views
        return TokenIdentity(
            views.resize,
            views.crop,
            views.mean,
            views.std,
            info.architecture,
            info.weights_hash,
            config.train.precision,
            None if info.projection is None else str(info.projection["hash"]),
        )

    def store_facts(self, dataset: Dataset, part: str) -> dict[str, Any]:
        """For stores of what the trunk makes of a part of a dataset."""
        return {
            "images": image_facts(dataset, part, self.resize),
            "crop": self.crop,
            "mean": list(self.mean),
            "std": list(self.std),
            "architecture": self.architecture,
            "weights": self.weights,
            "precision": self.precision,
            "timm": version("timm"),
            **self._projected(),
        }

    def estimate_facts(self) -> dict[str, Any]:
        """For answers of K estimators, which name the images in their own way."""
        return {
            "weights": self.weights,
            "architecture": self.architecture,
            "views": [self.resize, self.crop, *self.mean, *self.std],
            "precision": self.precision,
            **self._projected(),
        }

    def _projected(self) -> dict[str, str]:
        return {} if self.projection is None else {"projection": self.projection}
