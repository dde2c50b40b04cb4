"""The balanced sampler of the GCD protocol: labelled and unlabelled rows are drawn equally often."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gcdbench.data.splits import Split


class BalancedSampler:
    """Draws with replacement; a labelled row has weight 1, an unlabelled one L/U."""

    def __init__(self, split: Split, batch_size: int) -> None:
        labelled, unlabelled = len(split.labelled), len(split.unlabelled)
        share = labelled / unlabelled if labelled and unlabelled else 1.0
        weights = np.zeros(labelled + unlabelled)
        weights[split.labelled] = 1.0
        weights[split.unlabelled] = share
        self.weights = torch.from_numpy(weights)
        self.batch_size = batch_size
        # An epoch draws as many rows as there are and drops the incomplete batch; a tiny set still gets one step.
        self.steps = max(1, len(weights) // batch_size)

    def epoch(self, random: torch.Generator) -> Tensor:
        """(steps, batch) row numbers."""
        drawn = torch.multinomial(self.weights, self.steps * self.batch_size, replacement=True, generator=random)
        return drawn.view(self.steps, self.batch_size)
