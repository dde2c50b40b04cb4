"""A PCA of trunk tokens: fitted without labels, frozen, kept as a small file.

Cells of a convolutional map have a thousand channels or more, most of which say little. Projected to a few hundred,
tails are small enough for a laptop. The projection is centred (the channels of a rectified map share a large mean,
beside which every two images look alike to a cosine) and scaled by one number, so that a learning rate means the same
on every backbone. Neither changes the order of the directions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, nn

from gcdbench.errors import DataError, UsageError
from gcdbench.system.files import not_a_file, write_atomically

_NAMES = ("mean", "components", "share")


class Projection(nn.Module):
    """(..., channels) to (..., dims): the directions in which tokens vary most."""

    mean: Tensor
    components: Tensor
    share: Tensor

    def __init__(self, mean: Tensor, components: Tensor, share: Tensor) -> None:
        """``mean`` (channels,), ``components`` (channels, dims) with the scale in them, ``share`` (): the part of the
        variance that is kept."""
        super().__init__()
        given = {"mean": mean, "components": components, "share": share}
        # Contiguous, because products round by the order in memory: fitted or read from a file, it is the same.
        self.fitted = {name: values.double().contiguous() for name, values in given.items()}
        """In double precision, whatever the module is moved to afterwards."""
        for name, values in self.fitted.items():
            self.register_buffer(name, values, persistent=False)

    @property
    def dims(self) -> int:
        """Width of what comes out."""
        return self.components.shape[1]

    def forward(self, tokens: Tensor) -> Tensor:
        """Never in half precision, in which a difference of large numbers would lose what matters."""
        kind = tokens.device.type
        with torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext():
            return (tokens.to(self.mean.dtype) - self.mean) @ self.components

    def digest(self) -> str:
        """Sixteen hex digits over the numbers."""
        digest = hashlib.sha256()
        for name in _NAMES:
            digest.update(self.fitted[name].cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def write(self, path: Path) -> None:
        """Keep it as a safetensors file."""
        from safetensors.torch import save

        content = save({name: values.cpu() for name, values in self.fitted.items()})

        def whole(stream: IO[bytes]) -> None:
            stream.write(content)

        write_atomically(path, whole)


def read_projection(path: Path) -> Projection:
    """What `Projection.write` has written; a DataError says what is wrong with another file."""
    from safetensors.torch import load

    odd = not_a_file(path)
    if odd is not None:
        raise DataError(f"The projection {path} {odd}.")
    try:
        found = load(path.read_bytes())
        mean, components, share = (found[name].double() for name in _NAMES)
        fits = components.ndim == 2 and mean.shape == components.shape[:1] and share.ndim == 0
    except Exception as fault:  # a damaged file can make the reader raise almost anything
        raise DataError(f"The projection {path} cannot be read: {fault}.") from fault
    if not fits or not all(values.isfinite().all() for values in (mean, components, share)):
        raise DataError(f"The projection {path} is damaged: its numbers do not fit together.")
    return Projection(mean, components, share)


def fit_projection(batches: Iterable[Tensor], dims: int) -> Projection:
    """PCA of (rows, tokens, channels) batches, the first token (the mean of the others) left out.

    In double precision and in the order of the batches, so that it is the same each time. Signs are fixed by the
    largest entry of each direction.
    """
    count = 0
    total: Tensor | None = None
    products: Tensor | None = None
    for tokens in batches:
        cells = tokens[:, 1:].flatten(0, 1)
        cells = cells.cpu().double() if cells.device.type == "mps" else cells.double()  # which has no doubles
        if total is None or products is None:
            total, products = cells.new_zeros(cells.shape[1]), cells.new_zeros(cells.shape[1], cells.shape[1])
        total += cells.sum(0)
        products += cells.T @ cells
        count += len(cells)
    if total is None or products is None:
        raise DataError("There are no images to fit a PCA on.")
    if not 1 <= dims <= min(len(total), count - 1):
        raise UsageError(
            f"backbone.pca is {dims}, but {count:,} cells of {len(total):,} channels have at most "
            f"{min(len(total), count - 1):,} directions."
        )
    mean = total / count
    covariance = (products / count - mean[:, None] * mean[None, :]).cpu()
    variances, directions = torch.linalg.eigh(covariance)
    variances, directions = variances.flip(0).clamp(min=0)[:dims], directions.flip(1)[:, :dims]
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    directions = directions * torch.where(largest < 0, -1.0, 1.0)
    spread = variances.mean().sqrt()
    if not spread > 0:
        raise DataError("The backbone gives the same tokens for every image; a PCA cannot be fitted.")
    return Projection(mean.cpu(), directions / spread, variances.sum() / covariance.trace())
