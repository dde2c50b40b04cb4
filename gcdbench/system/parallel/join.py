"""How a process becomes a rank: from what its launcher (torchrun, or `--gpus`) has put into the environment."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, rendezvous  # type: ignore[attr-defined]

from gcdbench.errors import GcdbenchError, Terminated, UsageError
from gcdbench.system.parallel.communicator import ALONE, Communicator
from gcdbench.system.parallel.liveness import Watch
from gcdbench.system.parallel.spawn import STORE, gpu_number, launched

MESSAGE_MINUTES = 30
"""A message between GPUs that takes longer than this has been lost. Before each, all hosts have said they are there."""
LEAVE_SECONDS = 5.0
"""How long a rank that has failed waits for its groups to end."""
_current: Communicator | None = None
_joined = 0
"""How often this process has joined others."""


def current() -> Communicator:
    """The ranks this process belongs to."""
    return _current or ALONE


@contextmanager
def joined(device: str = "auto") -> Iterator[Communicator]:
    """Join the other ranks, if a launcher has started some; leave them at the end, telling them how it went."""
    global _current
    if _current is not None or not launched():
        yield current()
        return
    _current = ranks = _join(device)
    try:
        yield ranks
        ranks.largest([0])  # no one leaves while another one still works
    except BaseException as fault:
        if isinstance(fault, Terminated) and fault.agreed and not ranks.first and ranks.watch is not None:
            ranks.watch.await_first()  # which saves the run
        ranks.close(*_last_words(fault))
        _leave()
        raise
    else:
        ranks.close()
        dist.destroy_process_group()
    finally:
        _current = None


def _leave() -> None:
    """Take down the groups after a fault, as far as that is possible.

    Their threads must not outlive the interpreter: the process would be aborted instead of ending with its own exit
    code. Where a lost rank keeps them busy, that is not waited for.
    """
    leaving = threading.Thread(target=dist.destroy_process_group, name="gcdbench-leave", daemon=True)
    leaving.start()
    leaving.join(LEAVE_SECONDS)


def _join(device: str) -> Communicator:
    global _joined
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if device == "mps":
        raise UsageError("Apple's GPU cannot be shared by several processes: use --device cpu, or one process.")
    place = torch.device("cpu")
    options: dict[str, Any] = {}
    if on_gpu:
        found = torch.cuda.device_count()
        wanted = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if STORE in os.environ else gpu_number(found) + 1
        if wanted > found:
            raise UsageError(f"{wanted} processes on this machine are to have a GPU each, but torch finds {found}.")
        place = torch.device("cuda", gpu_number(found))
        torch.cuda.set_device(place)
        options["device_id"] = place
    try:
        backend = "nccl" if on_gpu else "gloo"
        patience = timedelta(minutes=MESSAGE_MINUTES) if on_gpu else timedelta(days=7)
        store, rank, size = _store()
        # torchrun keeps one store for all restarts, and a script may make several runs: addresses of processes and
        # groups that are no more must not be found.
        _joined += 1
        store = PrefixStore(f"gcdbench/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_joined}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience, **options)
        # Hosts wait here for each other while the first rank writes, scores or packs, however long that takes.
        control = dist.new_group(backend="gloo", timeout=timedelta(days=7))
    except (RuntimeError, ValueError) as fault:
        first = (str(fault).strip().splitlines() or [type(fault).__name__])[0]
        raise GcdbenchError(f"The processes of this run cannot find each other: {first}") from fault
    ranks = Communicator(dist.get_rank(), dist.get_world_size(), place, control)
    watch = Watch(ranks.rank, ranks.size)
    host = os.environ["MASTER_ADDR"]
    try:
        if ranks.first:
            ranks.send(watch.listen(host))
            watch.accept()
        else:
            watch.connect(ranks.send(None), host)
    except OSError as fault:
        _leave()
        raise GcdbenchError(f"The processes of this run cannot find each other: {fault}") from fault
    ranks.watch = watch
    return ranks


def _store() -> tuple[Any, int, int]:
    """Where ranks leave their addresses: the launcher's store, or the file of `--gpus`."""
    if STORE in os.environ:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return FileStore(os.environ[STORE], size), rank, size
    found: tuple[Any, int, int] = next(rendezvous("env://"))
    return found


def _last_words(fault: BaseException) -> tuple[int, str]:
    if isinstance(fault, GcdbenchError):
        return fault.exit_code, str(fault)
    if isinstance(fault, Terminated) and fault.number != signal.SIGINT:
        return fault.exit_code, "it was asked to end."
    if isinstance(fault, KeyboardInterrupt):
        return 130, "it was interrupted."
    return 1, f"{type(fault).__name__}: {fault}"
