"""Settings of GPC."""

from __future__ import annotations

from dataclasses import dataclass

from gcdbench.errors import UsageError


@dataclass(frozen=True)
class GPCConfig:
    """Settings of GPC."""

    sup_weight: float = 0.35
    """Share of the supervised contrastive loss; InfoNCE has the rest."""
    info_nce_temp: float = 1.0
    """Temperature of InfoNCE over all rows."""
    supcon_temp: float = 0.07
    """Temperature of the supervised contrastive loss over labelled rows."""
    proto_weight: float = 1.0
    """Weight of the prototypes' loss."""
    proto_temp: float = 1.0
    """Mean of the prototypes' temperatures, which follow their densities."""
    warmup_epochs: int = 1
    """First epochs without prototypes."""
    find_k: bool = True
    """Find the number of classes by splits and merges, from epoch to epoch, instead of being told it."""
    start_factor: float = 1.5
    """With `find_k`: clusters of the first search, as a multiple of the base classes."""
    largest_k: int = 1000
    """With `find_k`: largest number of prototypes."""
    clean_merges: bool = True
    """Two merged clusters become one prototype; as released they stay and a third one is added."""
    dims: int = 16
    """Dimensions of the PCA in which clusters and prototypes live; 0 takes the features as they are."""
    accept: float = 0.1
    """Probability with which a split or merge that the test rejects is made all the same."""
    min_rows: int = 5
    """A cluster or part of at most this many rows is never split off."""
    prior_scale: float = 0.005
    """Scale of the prior covariance of a cluster."""
    restarts: int = 10
    """Starts of each k-means."""
    iterations: int = 100
    """Iterations of each start at most."""
    answer: str = "kmeans"
    """How rows are assigned at the end: `kmeans` (semi-supervised, with the number of classes told or found) or
    `prototypes` (the nearest one)."""
    head_hidden: int = 2048
    """Width of the head's hidden layers."""
    head_narrow: int = 256
    """Width of the head's narrow layer."""
    head_out: int = 128
    """Outputs of the head, on which the contrastive losses act."""

    def __post_init__(self) -> None:
        for name in ("info_nce_temp", "supcon_temp", "proto_temp", "prior_scale", "start_factor"):
            if getattr(self, name) <= 0:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must be positive.")
        for name in ("sup_weight", "accept"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must lie between 0 and 1.")
        for name in ("restarts", "iterations", "largest_k", "head_hidden", "head_narrow", "head_out"):
            if getattr(self, name) < 1:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("dims", "min_rows", "warmup_epochs", "proto_weight"):
            if getattr(self, name) < 0:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must not be negative.")
        if self.answer not in ("kmeans", "prototypes"):
            raise UsageError(f"method.answer is {self.answer!r}; it is 'kmeans' or 'prototypes'.")
