"""The contrastive loss of CMS."""

from __future__ import annotations

import torch
from torch import Tensor

from gcdbench.toolbox.losses import in_float32


@in_float32
def decoupled_contrastive(features: Tensor, temperature: float) -> Tensor:
    """-log(exp(s_pos) / sum over negatives of exp(s)): the positive is not in the denominator.

    ``features`` is (2 rows, dim) of length one; the other view of the same image is the positive, all views of other
    images are negatives. A batch of one image has no negatives and costs nothing.
    """
    rows = len(features) // 2
    similar = features @ features.T / temperature
    own = torch.arange(len(features), device=features.device)
    same = (own[:, None] - own[None, :]) % rows == 0
    positive = similar.gather(1, own.roll(rows)[:, None])[:, 0]
    if rows == 1:
        return 0.0 * positive.mean()
    return (torch.logsumexp(similar.masked_fill(same, -1e9), dim=1) - positive).mean()
