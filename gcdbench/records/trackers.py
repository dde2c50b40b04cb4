"""The trackers of one run: `jsonl` always, others by name. Only the first may stop a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gcdbench import registry
from gcdbench.contracts import Progress, Tracker
from gcdbench.errors import GcdbenchError
from gcdbench.records.jsonl_tracker import JsonlTracker
from gcdbench.system.plugin_call import plugin_call

EVERY = 5.0
"""Seconds between losses within an epoch."""


def check_names(names: Sequence[str]) -> list[str]:
    """Registered tracker names, without repetition; an unknown one is an error before anything is trained."""
    return list(dict.fromkeys(registry.canonical("tracker", name) for name in names))


class Trackers:
    """Passes on what happens, and drops a tracker that fails."""

    def __init__(self, names: Sequence[str], warn: Callable[[str], None]) -> None:
        self.jsonl = JsonlTracker()
        self.others: list[Tracker] = []
        self.warn = warn
        for name in check_names(names):
            if name != JsonlTracker.name:
                with plugin_call(name, "__init__", kind="tracker"):
                    self.others.append(registry.load("tracker", name)())

    def start(self, folder: Path, config: Mapping[str, Any], epochs_done: int, steps: int) -> None:
        """The run begins. A tracker that cannot even start must be reported to the user before hours of training."""
        self.epochs_done = epochs_done
        self.last = time.monotonic()
        self.jsonl.start(folder, config, epochs_done, steps)
        if self.jsonl.kept < epochs_done:
            lost = epochs_done - self.jsonl.kept
            self.warn(f"{self.jsonl.path} lacks {lost} of {epochs_done} epochs: something else has changed it.")
        waiting, self.others = self.others, []
        for tracker in waiting:
            with plugin_call(tracker.name, "start", kind="tracker"):
                tracker.start(folder, config, epochs_done, steps)
            self.others.append(tracker)

    def step(self, t: Progress, means: Mapping[str, float]) -> None:
        """Pass on the running means now and then."""
        if time.monotonic() - self.last > EVERY:
            self._each("step", self.epochs_done * t.steps_per_epoch + t.step, means)
            self.last = time.monotonic()

    def epoch(self, line: Mapping[str, Any]) -> None:
        """An epoch is done."""
        self.epochs_done += 1
        self.jsonl.epoch(self.epochs_done, line)
        self._each("epoch", self.epochs_done, line)

    def finish(self, record: Mapping[str, Any]) -> None:
        """The run is finished."""
        self._each("finish", record)

    def close(self) -> None:
        """The run is over."""
        self._each("close")

    def _each(self, hook: str, *arguments: Any) -> None:
        for tracker in list(self.others):
            try:
                with plugin_call(tracker.name, hook, kind="tracker"):
                    getattr(tracker, hook)(*arguments)
            except GcdbenchError as fault:
                self.others.remove(tracker)
                self.warn(f"{str(fault).removesuffix('.')}. The run continues without it.")
