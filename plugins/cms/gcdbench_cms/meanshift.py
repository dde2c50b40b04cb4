"""Mean shift by nearest neighbours: each feature moves towards the mean of its neighbours in a bank."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.toolbox.losses import no_autocast, wide

BLOCK_BYTES = 64 << 20
"""Largest table of similarities that is in memory at a time."""


@torch.no_grad()
def neighbour_mean(features: Tensor, bank: Tensor, count: int) -> Tensor:
    """Mean of the ``count`` nearest vectors of the bank, the very nearest (the row itself) left out.

    Both are of length one. The bank is gone through in blocks, whatever its size.
    """
    features = wide(features)
    keep = min(count + 1, len(bank))
    best = features.new_full((len(features), 0), -torch.inf)
    place = torch.zeros((len(features), 0), dtype=torch.long, device=features.device)
    step = max(1, BLOCK_BYTES // (4 * max(len(features), *bank.shape[1:])))
    for start in range(0, len(bank), step):
        block = bank[start : start + step].to(features.device, features.dtype)
        with no_autocast(features):  # near neighbours differ by less than half precision
            near = features @ block.T
        both = torch.cat([best, near], dim=1)
        here = torch.arange(start, start + near.shape[1], device=features.device).expand(len(features), -1)
        best, chosen = both.topk(min(keep, both.shape[1]), dim=1)
        place = torch.cat([place, here], dim=1).gather(1, chosen)
    others = place[:, 1:] if place.shape[1] > 1 else place
    total = torch.zeros_like(features)
    for column in others.T:  # one neighbour at a time: (rows, count, dim) would be count times as large
        total += bank[column.to(bank.device)].to(features.device, features.dtype)
    return total / max(1, others.shape[1])


def shifted(features: Tensor, means: Tensor, alpha: float) -> Tensor:
    """(1 - alpha) features + alpha means, of length one; the length itself is not learnt from."""
    moved = (1 - alpha) * features + alpha * means
    found: Tensor = moved / moved.detach().norm(dim=1, keepdim=True).clamp(min=1e-12)
    return found


ALIASED_ROWS = 128
"""Rows of a batch in the released clustering, on which the result of its aliasing depends."""


@torch.no_grad()
def shift_in_place(
    features: Tensor, count: int, alpha: float, labelled: Tensor | None = None, rows: int = ALIASED_ROWS
) -> Tensor:
    """As `shift_all`, but batches write into the array they read from, as the released code does from its second shift
    on: later batches have neighbours that are shifted already, and not yet of length one.

    Labelled rows come first, as in the released code.
    """
    first = torch.zeros(len(features), dtype=torch.bool) if labelled is None else labelled
    order = torch.argsort(~first.to(features.device), stable=True)
    data = features[order]
    for part in data.split(rows):  # parts are views of the data
        part.copy_((1 - alpha) * part + alpha * neighbour_mean(part, data, count))
    return F.normalize(torch.empty_like(data).index_copy_(0, order, data), dim=1)


@torch.no_grad()
def shift_all(features: Tensor, count: int, alpha: float, rows: int = 1024) -> Tensor:
    """Every row of a set shifted among the set, some rows at a time."""
    parts = [shifted(part, neighbour_mean(part, features, count), alpha) for part in features.split(rows)]
    return F.normalize(torch.cat(parts), dim=1)
