"""A method whose import is not quiet in any way."""

from __future__ import annotations

import numpy as np
import torch

from tests.testing.broken import Sound

print("welcome")
torch.manual_seed(1)
np.random.seed(1)
with open("left_behind.txt", "w") as stream:
    stream.write("hello")


class FailsImportQuiet(Sound):
    """Otherwise sound."""
