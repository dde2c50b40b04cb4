"""How a process becomes a rank: from what its launcher (torchrun, or `--gpus`) has put into the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gcdbench.errors import GcdbenchError, Terminated, UsageError
from gcdbench.ranks.group import ALONE, Ranks
from gcdbench.ranks.launch import launched, local_rank
from gcdbench.ranks.watch import Watch

MESSAGE_MINUTES = 30
"""A message between GPUs that takes longer than this has been lost. Before each, all hosts have said they are there."""
_current: Ranks | None = None


def current() -> Ranks:
    """The ranks this process belongs to."""
    return _current or ALONE


@contextmanager
def joined(device: str = "auto") -> Iterator[Ranks]:
    """Join the other ranks, if a launcher has started some; leave them at the end, telling them how it went."""
    global _current
    if _current is not None or not launched():
        yield current()
        return
    _current = ranks = _join(device)
    try:
        yield ranks
        ranks.largest([0])  # nobody leaves while another one still works
    except BaseException as fault:
        ranks.close(*_last_words(fault))
        raise
    else:
        ranks.close()
        dist.destroy_process_group()
    finally:
        _current = None


def _join(device: str) -> Ranks:
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if device == "mps":
        raise UsageError("Apple's GPU cannot be shared by several processes: use --device cpu, or one process.")
    place = torch.device("cpu")
    options: dict[str, Any] = {}
    if on_gpu:
        here, found = local_rank(), torch.cuda.device_count()
        if here >= found:
            raise UsageError(f"Process {here + 1} on this machine has no GPU: torch finds {found} here.")
        place = torch.device("cuda", here)
        torch.cuda.set_device(place)
        options["device_id"] = place
    try:
        backend = "nccl" if on_gpu else "gloo"
        patience = timedelta(minutes=MESSAGE_MINUTES) if on_gpu else timedelta(days=7)
        store, rank, size = next(dist.rendezvous("env://"))
        # torchrun may keep one store for all its restarts: addresses of processes that are dead must not be found.
        store = dist.PrefixStore(f"gcdbench/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience, **options)
        # Hosts wait here for each other while the first rank writes, scores or packs, however long that takes.
        control = dist.new_group(backend="gloo", timeout=timedelta(days=7))
    except (RuntimeError, ValueError) as fault:
        first = (str(fault).strip().splitlines() or [type(fault).__name__])[0]
        raise GcdbenchError(f"The processes of this run cannot find each other: {first}") from fault
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), place, control)
    watch = Watch(ranks.rank, ranks.size)
    if ranks.first:
        ranks.send(watch.listen(os.environ["MASTER_ADDR"]))
        watch.accept()
    else:
        watch.connect(ranks.send(None))
    ranks.watch = watch
    return ranks


def _last_words(fault: BaseException) -> tuple[int, str]:
    if isinstance(fault, GcdbenchError):
        return fault.exit_code, str(fault)
    if isinstance(fault, Terminated):
        return fault.exit_code, "it was asked to end."
    if isinstance(fault, KeyboardInterrupt):
        return 130, "it was interrupted."
    return 1, f"{type(fault).__name__}: {fault}"
