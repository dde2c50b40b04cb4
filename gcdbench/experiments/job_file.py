"""Job files: the runs of one job as plain data, so that any machine can make them from the same words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from gcdbench.config.coercion import coerce
from gcdbench.config.resolve import Layer
from gcdbench.data.data_root import data_root
from gcdbench.errors import UsageError
from gcdbench.prepare.environment import CHECKPOINT_EVERY, MAX_LANES, RunEnvironment, StoreOptions
from gcdbench.prepare.request import RunRequest
from gcdbench.system.files import read_json, write_json
from gcdbench.system.parallel.communicator import ALONE, Communicator

VERSION = 2
READS = (1, 2)
"""Versions that can be read; the first has fewer fields of a request."""


@dataclass(frozen=True)
class JobEnvironment:
    """Where and with what the runs of a job are made; folders as all machines see them."""

    runs: str
    data_root: str
    cache: str
    device: str = "auto"
    gpus: int = 1
    """Processes of each run."""
    workers: int | None = None
    image_store: bool = True
    lanes: int = MAX_LANES
    checkpoint_every: float = CHECKPOINT_EVERY

    @staticmethod
    def of(environment: RunEnvironment, gpus: int) -> JobEnvironment:
        """That of a run environment."""
        return JobEnvironment(
            runs=str(environment.runs),
            data_root=str(environment.root),
            cache=str(environment.store_options.root.absolute()),
            device=environment.device,
            gpus=gpus,
            workers=environment.workers,
            image_store=environment.store_options.packs,
            lanes=environment.lanes,
            checkpoint_every=environment.checkpoint_every,
        )

    def open(self, ranks: Communicator = ALONE) -> RunEnvironment:
        """As a run environment."""
        return RunEnvironment(
            Path(self.runs),
            data_root(Path(self.data_root)),
            self.device,
            self.workers,
            StoreOptions.at(Path(self.cache), self.image_store),
            self.lanes,
            self.checkpoint_every,
            ranks,
        )


@dataclass(frozen=True)
class JobFile:
    """What a job does."""

    environment: JobEnvironment
    requests: tuple[RunRequest, ...]
    run_ids: tuple[str, ...]
    """Which runs these make; a machine that sees other data or plugins would make others."""

    def write(self, path: Path) -> None:
        """As JSON."""
        runs = [{"run_id": i, **_plain(r)} for i, r in zip(self.run_ids, self.requests, strict=True)]
        write_json(path, {"version": VERSION, "place": asdict(self.environment), "runs": runs})

    @staticmethod
    def read(path: Path) -> JobFile:
        """From JSON; what is no job file is reported as such."""
        try:
            tree = read_json(path)
            if tree["version"] not in READS:
                raise UsageError(
                    f"{path} is of version {tree['version']}; this gcdbench reads versions 1 to {VERSION}."
                )
            environment = JobEnvironment(**_checked(tree["place"], get_type_hints(JobEnvironment), "place"))
            runs = tree["runs"]
            return JobFile(environment, tuple(map(_request, runs)), tuple(str(entry["run_id"]) for entry in runs))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
            raise UsageError(f"{path} cannot be read as a job of a sweep ({type(fault).__name__}: {fault}).") from fault


def _plain(request: RunRequest) -> dict[str, Any]:
    """Every field of a request, as JSON can hold it."""
    seeds, study, config = request.seeds or (), request.study, request.config
    if len(seeds) != 1:
        raise ValueError("a job has one request per seed")
    found = {field.name: getattr(request, field.name) for field in fields(request) if field.name != "seeds"}
    return {
        **found,
        "seed": seeds[0],
        "settings": dict(request.settings),
        "config": None if config is None else str(config),
        "study": None if study is None else {"source": study.source, "values": dict(study.values)},
    }


def _checked(values: Mapping[str, Any], types: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values of the right types; a ValueError or UsageError if one is not."""
    if set(values) - set(types):
        raise ValueError(f"{where} has unknown keys")
    return {key: coerce(value, types[key], f"{where}.{key}", "job file") for key, value in values.items()}


_SPECIAL: dict[str, Any] = {"seeds": int, "settings": dict, "config": str | None, "study": dict | None}
"""Types of the fields of a request that are written in another form."""


def _request(entry: Mapping[str, Any]) -> RunRequest:
    hints = get_type_hints(RunRequest) | _SPECIAL
    types = {"seed" if name == "seeds" else name: kind for name, kind in hints.items()}
    values = {name: value for name, value in entry.items() if name != "run_id"}
    plain = {name: value for name, value in values.items() if name not in ("settings", "study")}
    known = _checked(plain, types, "request")
    study, settings, config = values["study"], values["settings"], known.pop("config", None)
    return RunRequest(
        **{name: value for name, value in known.items() if name != "seed"},
        seeds=(known["seed"],),
        settings=dict(settings),
        config=None if config is None else Path(config),
        study=None if study is None else Layer(str(study["source"]), dict(study["values"])),
    )
