"""Random numbers: every consumer gets a generator of its own, derived from the run's seed and a name.

No generator carries state across epochs. Within an epoch, a checkpoint holds the state of those that do, so a resumed
run draws what an uninterrupted one would have drawn.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from typing import Any

import numpy as np
import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the consumer called ``names``."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator for the consumer called ``names``."""
    return torch.Generator(device=device).manual_seed(derive(seed, *names))


class AmbientStream:
    """The global streams of torch, numpy and random as one consumer sees them: derived ones, its own.

    Inside, it draws from them; outside, nothing has been drawn, and no global switch of torch is turned. It may be
    entered any number of times and resumes where it left off, so that several consumers take turns without seeing
    each other. For code that cannot be handed a generator: layer constructors, dropout, third-party plugins.
    """

    def __init__(self, seed: int, *names: str | int) -> None:
        self.seed = seed
        self.names = names
        self._own: Any = None

    def __enter__(self) -> None:
        self._outer = global_state()
        if self._own is None:
            torch.manual_seed(derive(self.seed, *self.names))
            np.random.seed(derive(self.seed, *self.names, "numpy") % 2**32)
            random.seed(derive(self.seed, *self.names, "random"))
        else:
            set_global_state(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = global_state()
        set_global_state(self._outer)

    def digest(self) -> int:
        """A checksum of where the streams stand."""
        if self._own is None:
            return 0
        cpu, cuda, numbers, plain, _ = self._own
        drawn = (*(s.numpy().tobytes() for s in (cpu, *cuda)), repr((numbers[1:], plain)).encode())
        return zlib.crc32(b"".join(drawn))

    def state(self) -> dict[str, Any] | None:
        """Where the streams stand, as a checkpoint can hold it; None if no one has entered them yet."""
        if self._own is None:
            return None
        cpu, cuda, (kind, keys, *rest), plain, (grad, dtype, _) = self._own
        numbers = [str(kind), torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest]
        modes = [grad, str(dtype).removeprefix("torch.")]
        return {"torch": cpu, "cuda": list(cuda), "numpy": numbers, "random": plain, "modes": modes}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from such a state."""
        if state is None:
            return
        kind, keys, position, has_gauss, gauss = state["numpy"]
        numbers = (kind, keys.numpy().astype(np.uint32), int(position), int(has_gauss), float(gauss))
        grad, dtype = state["modes"]
        modes = (grad, getattr(torch, dtype), torch.get_num_threads())
        self._own = (state["torch"], state["cuda"], numbers, state["random"], modes)


def global_state() -> tuple[Any, ...]:
    """Where the global streams and switches of this process stand."""
    # Of this process's GPU alone: others belong to other ranks, which draw the same numbers on theirs.
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
    return torch.get_rng_state(), cuda, np.random.get_state(), random.getstate(), _modes()


def set_global_state(state: tuple[Any, ...]) -> None:
    """Put them there."""
    cpu, cuda, numbers, plain, modes = state
    torch.set_rng_state(cpu)
    if cuda and torch.cuda.is_available():  # a run may continue without the device it began on
        torch.cuda.set_rng_state(cuda[0])
    np.random.set_state(numbers)
    random.setstate(plain)
    if modes != _modes():
        grad, dtype, threads = modes
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


def _modes() -> tuple[bool, torch.dtype, int]:
    """Global switches of torch that a plugin may turn."""
    return torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()


def fenced_rng(seed: int, *names: str | int) -> AmbientStream:
    """A stream that is entered once."""
    return AmbientStream(seed, *names)
