"""Runs from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from gcdbench.data.data_root import data_root as choose_root
from gcdbench.prepare.environment import CHECKPOINT_EVERY, DEFAULT_RUNS, MAX_LANES, RunEnvironment, StoreOptions
from gcdbench.prepare.request import RunRequest
from gcdbench.records.record import Record
from gcdbench.runs.execute import ExecuteOptions, all_records, execute
from gcdbench.system.observer import LoggingObserver, Observer
from gcdbench.system.parallel.join import joined


class RunOptions(TypedDict, total=False):
    """What `gcdbench.run` takes besides method and dataset; all of it is optional."""

    recipe: str | None
    """Named variant of the method."""
    seeds: Sequence[int] | int | None
    backbone: str | None
    epochs: int | None
    k: int | str | None
    """A number of classes, or the name of a K estimator."""
    label_ratio: float | None
    novel_ratio: float | None
    precision: str | None
    compile: bool | None
    train_views: int | None
    """Train on this many stored views of each image."""
    store_tokens: str | None
    """Keep tokens of evaluation views on disk: `fp32`, `bf16` or `fp16`."""
    on_bad_image: str | None
    settings: Mapping[str, Any] | None
    """`section.key` to value, as `--set` does on the command line."""
    config: Path | str | None
    """A TOML file."""
    device: str
    runs: Path | str
    data_root: Path | str | None
    workers: int | None
    cache: Path | str | None
    """Where stores live."""
    image_store: bool
    lanes: int
    checkpoint_every: float
    force: bool
    """Repeat runs that are finished or unfinished."""
    track: Sequence[str]
    """Trackers, like `tensorboard`."""
    observer: Observer | None
    """What is shown on the way; None passes warnings to `logging`."""


def run(
    method: str | Sequence[str] | None = None, dataset: str | None = None, **options: Unpack[RunOptions]
) -> list[Record]:
    """Train and score a method on a dataset, once per seed, and return the records.

    Several methods (`"A,B"` or a list; `A:RECIPE` names a recipe) share trunk passes. Finished runs are returned as
    they are, unfinished ones resumed. Started by `torchrun`, all processes work on each run together and get the same
    records. `RunOptions` lists the options.
    """
    given = dict(options)
    unknown = sorted(set(given) - set(RunOptions.__annotations__))
    if unknown:
        raise TypeError(f"run() got an unexpected keyword argument '{unknown[0]}'")
    request = _request(method, dataset, options)
    with joined(options.get("device", "auto")) as ranks:
        cache, runs = options.get("cache"), Path(options.get("runs", DEFAULT_RUNS))
        root = options.get("data_root")
        environment = RunEnvironment(
            runs,
            choose_root(None if root is None else Path(root)),
            options.get("device", "auto"),
            options.get("workers"),
            StoreOptions.at(None if cache is None else Path(cache), options.get("image_store", True)),
            options.get("lanes", MAX_LANES),
            options.get("checkpoint_every", CHECKPOINT_EVERY),
            ranks,
        )
        observer = (options.get("observer") or LoggingObserver()) if ranks.first else Observer()
        how = ExecuteOptions(force=options.get("force", False), track=tuple(options.get("track", ())))
        return all_records(execute(request.each(), environment, observer, how))


def _request(method: str | Sequence[str] | None, dataset: str | None, options: RunOptions) -> RunRequest:
    seeds, config = options.get("seeds"), options.get("config")
    return RunRequest(
        method=method if method is None or isinstance(method, str) else ",".join(method),
        dataset=dataset,
        recipe=options.get("recipe"),
        seeds=(seeds,) if isinstance(seeds, int) else None if seeds is None else tuple(seeds),
        backbone=options.get("backbone"),
        epochs=options.get("epochs"),
        k=options.get("k"),
        label_ratio=options.get("label_ratio"),
        novel_ratio=options.get("novel_ratio"),
        precision=options.get("precision"),
        compile=options.get("compile"),
        train_views=options.get("train_views"),
        store_tokens=options.get("store_tokens"),
        on_bad_image=options.get("on_bad_image"),
        settings=dict(options.get("settings") or {}),
        config=None if config is None else Path(config),
    )
