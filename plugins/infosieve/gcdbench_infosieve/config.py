"""Settings of InfoSieve."""

from __future__ import annotations

from dataclasses import dataclass

from gcdbench.errors import UsageError


@dataclass(frozen=True)
class InfoSieveConfig:
    """Settings of InfoSieve."""

    sup_weight: float = 0.35
    """Share of the supervised contrastive losses, half of it with labels and half with clusters."""
    smoothing: float = 0.5
    """Label smoothing of the self-supervised losses: 1 gives a row's other view no more weight than any other row."""
    nce_temp: float = 1.0
    """Temperature of the self-supervised losses, over negative distances."""
    supcon_temp: float = 0.07
    """Temperature of the supervised contrastive losses, over negative distances."""
    bits: int = 40
    """Length of the codes."""
    code_hidden: int = 128
    """Width of the code head's hidden layers."""
    code_layers: int = 2
    """Hidden layers of that width after the first one."""
    code_condition_weight: float = 0.01
    """Weight of the term that drives code values to plus and minus one, in equal parts over a batch."""
    mask_condition_weight: float = 0.01
    """Weight of the term that drives masks to zero and one."""
    category_weight: float = 0.01
    """Weight of the classification of labelled rows by the masked code."""
    length_weight: float = 0.1
    """Weight of the length of the codes."""
    length_mean: bool = False
    """Take the length as a mean over views; as released it is a sum, and grows with the batch."""
    row_sums: bool = False
    """Divide the distances of codes by the sums of their own rows; as released the sums are taken along columns."""
    balanced: bool = True
    """Begin the clustering with clusters of at most as many rows as there are on average."""
    clean_balance: bool = False
    """Balance as it seems to be meant; as released a cluster of one row always has room, one with too many labelled
    rows frees too few, and starts leave out rows of arbitrary numbers."""
    restarts: int = 10
    """Starts of the clustering, of which the best is taken."""
    iterations: int = 10
    """Iterations of each start at most, first with balance and then as often without."""
    head_hidden: int = 2048
    """Width of the projection's hidden layers."""
    head_narrow: int = 256
    """Width of the projection's narrow layer."""
    head_out: int = 65536
    """Directions of the projection's last layer."""

    def __post_init__(self) -> None:
        for name in ("sup_weight", "smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must lie between 0 and 1.")
        if min(self.nce_temp, self.supcon_temp) <= 0:
            raise UsageError("method.nce_temp and method.supcon_temp must be positive.")
        counts = ("code_hidden", "restarts", "iterations", "head_hidden", "head_narrow", "head_out")
        for name in counts:
            if getattr(self, name) < 1:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must be at least 1.")
        if not 1 <= self.bits <= 52:
            raise UsageError(f"method.bits is {self.bits}; it must lie between 1 and 52.")
        for name in (
            "code_layers",
            "code_condition_weight",
            "mask_condition_weight",
            "category_weight",
            "length_weight",
        ):
            if getattr(self, name) < 0:
                raise UsageError(f"method.{name} is {getattr(self, name)}; it must not be negative.")
