"""Work that threads do in advance, handed out in order."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def default_workers() -> int:
    """One thread per core, at most eight: decoding, resizing and copying leave Python's lock alone."""
    return min(8, os.cpu_count() or 1)


def ahead(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int, depth: int | None = None
) -> Iterator[tuple[Item, Result]]:
    """Each item with ``work(item)``, in order; at most ``depth`` results wait. No worker: done when asked for."""
    if workers == 0:
        for item in items:
            yield item, work(item)
        return
    queue = iter(items)
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="gcdbench-reader")
    try:
        for item in itertools.islice(queue, depth or workers + 2):
            waiting.append((item, pool.submit(work, item)))
        while waiting:
            item, future = waiting.popleft()
            result = future.result()
            for following in itertools.islice(queue, 1):
                waiting.append((following, pool.submit(work, following)))
            yield item, result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
