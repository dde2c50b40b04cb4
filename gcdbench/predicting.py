"""Prediction by argmax, for methods with a classifier over all classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gcdbench.contracts import Pool, Prediction


def predict_by_logits(
    pool: Pool,
    logits: Callable[[Tensor], Mapping[str, Tensor]],
    num_base: int,
    temperature: float,
    main: str = "main",
) -> Prediction:
    """The most probable class of each query row.

    ``logits`` maps trunk tokens to logits per branch; every branch's first ``num_base`` columns are the base
    classes. Only four small numbers per row and branch leave the device, never the logits.
    """
    names: list[str] = []

    def embed(tokens: Tensor) -> Tensor:
        branches = logits(tokens)
        names[:] = [main, *(n for n in branches if n != main)]
        all_classes = branches[main].float()
        best = all_classes.argmax(1)
        confidence = (all_classes / temperature).softmax(1).amax(1)
        base = [branches[n][:, :num_base].argmax(1) for n in names]
        # One float32 table (class numbers are exact in it up to 16 million): a single copy to the host at the end.
        return torch.stack([best.float(), confidence, *(b.float() for b in base)], dim=1)

    table = pool.queries.features(embed).cpu().numpy()
    return Prediction(
        cluster=table[:, 0].astype("int64"),
        confidence=table[:, 1].astype("float32"),
        base={name: table[:, 2 + i].astype("int64") for i, name in enumerate(names)},
    )
