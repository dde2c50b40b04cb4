"""The space in which GPC clusters: features of length one, or their PCA."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Space:
    """A projection of features of length one; without components it changes nothing."""

    mean: Tensor | None = None
    components: Tensor | None = None
    """(dim, dims)."""

    @classmethod
    def of(cls, rows: Tensor, dims: int) -> Space:
        """The PCA of the rows; with 0 dimensions, or no fewer than there are, the identity."""
        if not 0 < dims < min(rows.shape):
            return cls()
        data = rows if rows.device.type == "mps" else rows.double()
        mean = data.mean(0)
        _, vectors = torch.linalg.eigh((data - mean).T @ (data - mean))
        components = vectors[:, -dims:].flip(1)
        # The sign of a component is arbitrary: its largest entry is positive.
        largest = components.abs().argmax(0, keepdim=True)
        components = components * components.gather(0, largest).sign()
        return cls(mean.to(rows.dtype), components.to(rows.dtype))

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows in this space."""
        if self.mean is None or self.components is None:
            return rows
        return (rows - self.mean.to(rows)) @ self.components.to(rows)
