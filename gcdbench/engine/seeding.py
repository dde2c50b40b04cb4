"""Random numbers: every consumer gets a generator of its own, derived from the run's seed and a name.

No generator carries state across epochs, so a resumed run draws what an uninterrupted one would have drawn.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the consumer called ``names``."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator for the consumer called ``names``."""
    return torch.Generator(device=device).manual_seed(derive(seed, *names))


@contextmanager
def fenced_rng(seed: int, *names: str | int) -> Iterator[None]:
    """Inside, the global streams of torch, numpy and random are derived ones; outside, nothing has been drawn.

    For code that cannot be handed a generator: layer constructors, dropout, third-party plugins.
    """
    numbers, plain = np.random.get_state(), random.getstate()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(derive(seed, *names))
        np.random.seed(derive(seed, *names, "numpy") % 2**32)
        random.seed(derive(seed, *names, "random"))
        try:
            yield
        finally:
            np.random.set_state(numbers)
            random.setstate(plain)
