"""UNO's loss: each view is taught the other view's label or its Sinkhorn assignment."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.toolbox.losses import in_float32, sinkhorn


@in_float32
def targets(logits: Tensor, target: Tensor, labelled: Tensor, epsilon: float, iterations: int) -> Tensor:
    """(rows, K) what one view says of each row: its label, or a Sinkhorn assignment among the unlabelled rows."""
    one_hot = F.one_hot(torch.where(labelled, target, 0), logits.shape[1]).to(logits.dtype)
    assigned = sinkhorn(logits, ~labelled, epsilon, iterations)
    return torch.where(labelled[:, None], one_hot, assigned)


@in_float32
def swapped_prediction(
    logits: Tensor, target: Tensor, labelled: Tensor, temperature: float, epsilon: float, iterations: int
) -> Tensor:
    """Mean over both views of the cross entropy with what the other view says. ``logits`` is (2 rows, K) cosines."""
    views = logits.chunk(2)
    said = [targets(view.detach(), target, labelled, epsilon, iterations) for view in views]
    log_p = [F.log_softmax(view / temperature, dim=1) for view in views]
    return -0.5 * ((said[1] * log_p[0]).sum(1) + (said[0] * log_p[1]).sum(1)).mean()
