"""Parsers of configs, weights, and of what runs leave behind."""

from __future__ import annotations

import io
import json
import tomllib
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from random import Random

import numpy as np
import torch

from gcdbench.training.lane_state import LaneState
from tests.fuzz.target import Target

HERE = Path(__file__).parents[1]


class ConfigFile(Target):
    name = "TOML config"
    share = 6

    @cached_property
    def seeds(self) -> list[bytes]:
        own = (
            '[run]\nmethod = "rlcd"\ndataset = "digits"\nseeds = [0, 1]\n[train]\nepochs = 3\nlr = 0.1\n'
            "[views]\nmean = [0.5, 0.5, 0.5]\ncrop = 16\nresize = 18\n[data]\nk = 12\nlabel_ratio = 0.5\n"
            "[method]\nalpha = 0.3\n"
        )
        return [own.encode(), *(p.read_bytes() for p in sorted((HERE.parent / "configs").glob("demo*.toml")))]

    def prepare(self, content: bytes, random: Random) -> None:
        (self.root / "c.toml").write_bytes(content)

    def read(self) -> None:
        from gcdbench_rlcd import RLCD

        from gcdbench.config.resolve import resolve, run_id
        from gcdbench.prepare.request import RunRequest, _seeds, _with_file

        request, layer = _with_file(RunRequest(config=self.root / "c.toml"))
        _seeds(request.seeds)
        found = resolve(method="m", dataset="d", recipe="r", seed=0, method_config=RLCD.Config, layers=[layer])
        assert len(run_id(found.config)) == 12


class Assignments(Target):
    name = "--set values"
    share = 12

    @cached_property
    def seeds(self) -> list[bytes]:
        return [
            b"train.lr=0.05",
            b"method.alpha=inf",
            b"views.mean=[1,2,3]",
            b"data.k=none",
            b'backbone.name="x"',
            b"a.b=1979-05-27",
        ]

    def prepare(self, content: bytes, random: Random) -> None:
        self.text = content.decode("utf-8", "surrogateescape")

    def read(self) -> None:
        from gcdbench_rlcd import RLCD

        from gcdbench.config.coercion import parse_assignment
        from gcdbench.config.resolve import Layer, resolve

        key, value = parse_assignment(self.text)
        layers = [Layer("--set", {key: value})]
        resolve(method="m", dataset="d", recipe="r", seed=0, method_config=RLCD.Config, layers=layers)


class ExperimentFile(Target):
    name = "TOML experiment"
    share = 4

    @cached_property
    def seeds(self) -> list[bytes]:
        files = [p.read_bytes() for p in sorted((HERE.parent / "plugins/rlcd").rglob("experiments/*.toml"))]
        return [f for f in files if "experiment" in tomllib.loads(f.decode())][:4]

    def prepare(self, content: bytes, random: Random) -> None:
        (self.root / "e.toml").write_bytes(content)

    def read(self) -> None:
        from gcdbench.analysis.experiment_file import parse_experiment

        for row in parse_experiment(self.root / "e.toml").rows:
            row.settings_on("cub")


class Records(Target):
    name = "records"
    share = 2

    @cached_property
    def seeds(self) -> list[bytes]:
        from tests.support.records import record

        return [json.dumps(record().as_dict()).encode()]

    def prepare(self, content: bytes, random: Random) -> None:
        (self.root / "record.json").write_bytes(content)

    def read(self) -> None:
        from gcdbench.records.record import read_record

        read_record(self.root / "record.json").as_dict()


class Epochs(Target):
    name = "metrics.jsonl"
    share = 10

    @cached_property
    def seeds(self) -> list[bytes]:
        line = json.dumps({"stage": "main", "epoch": 1, "losses": {"total": 1.5}, "lr": {"main": 0.1}, "seconds": 1.0})
        return [(line + "\n").encode() * 3]

    def prepare(self, content: bytes, random: Random) -> None:
        (self.root / "metrics.jsonl").write_bytes(content)

    def read(self) -> None:
        from gcdbench.records.run_directory import RunDirectory

        assert all(isinstance(line, dict) for line in RunDirectory(self.root).epochs())


class Predictions(Target):
    name = "npz of predictions"
    share = 3

    @cached_property
    def seeds(self) -> list[bytes]:
        found = []
        for save in (np.savez, np.savez_compressed):
            stream = io.BytesIO()
            save(stream, y_true=np.arange(6) % 3, y_pred=np.arange(6) % 4, num_base=np.array(2))
            found.append(stream.getvalue())
        return found

    def prepare(self, content: bytes, random: Random) -> None:
        (self.root / "p.npz").write_bytes(content)

    def read(self) -> None:
        from gcdbench.evaluation.score import score_file

        score_file(self.root / "p.npz")


class Checkpoints(Target):
    name = "checkpoints"
    share = 3

    @cached_property
    def seeds(self) -> list[bytes]:
        from gcdbench.training import checkpoint

        state = {
            **dict.fromkeys(field.name for field in fields(LaneState)),
            "run": "me",
            "lane": {"w": torch.arange(3.0), "s": (1, "x", None)},
        }
        checkpoint.write(self.root / "seed.pt", state)
        return [(self.root / "seed.pt").read_bytes()]

    def prepare(self, content: bytes, random: Random) -> None:
        import hashlib

        path = self.root / "checkpoint/last.pt"
        path.parent.mkdir(exist_ok=True)
        if random.random() < 0.7:  # as if someone had damaged it on purpose and mended the checksum
            content = content[:-73]
            content += b"\nsha256 " + hashlib.sha256(content).hexdigest().encode() + b"\n"
        path.write_bytes(content)

    def read(self) -> None:
        from gcdbench.training import checkpoint

        checkpoint.load(self.root)


class Weights(Target):
    name = "weights"
    share = 3

    @cached_property
    def seeds(self) -> list[bytes]:
        from safetensors.torch import save

        state = {"module.backbone.w": torch.arange(4.0), "head.x": torch.zeros(2)}
        found = [save(state)]
        for content in (state, {"teacher": state}, {"model": {"state_dict": state}}):
            stream = io.BytesIO()
            torch.save(content, stream)
            found.append(stream.getvalue())
        return found

    def prepare(self, content: bytes, random: Random) -> None:
        self.path = self.root / random.choice(("w.safetensors", "w.pth"))
        self.path.write_bytes(content)

    def read(self) -> None:
        from gcdbench.backbone.weights import read_state

        read_state(self.path)


class Projections(Target):
    name = "projection"
    share = 2

    @cached_property
    def seeds(self) -> list[bytes]:
        from gcdbench.backbone.projection import fit_projection

        random = torch.Generator().manual_seed(0)
        fit_projection([torch.randn(9, 5, 6, generator=random)], 3).write(self.root / "p.safetensors")
        return [(self.root / "p.safetensors").read_bytes()]

    def prepare(self, content: bytes, random: Random) -> None:
        (self.root / "p.safetensors").write_bytes(content)

    def read(self) -> None:
        from gcdbench.backbone.projection import read_projection

        found = read_projection(self.root / "p.safetensors")
        assert found(torch.zeros(1, 2, len(found.mean))).shape[-1] == found.dims
        assert len(found.digest()) == 16


class Stores(Target):
    name = "store descriptions"
    share = 4

    @cached_property
    def seeds(self) -> list[bytes]:
        facts = {"kind": "tokens", "what": "x", "facts": {}, "bytes": 4, "rows": 1, "shape": [1], "dtype": "fp32"}
        return [json.dumps({**facts, "checksums_sha256": "0" * 64}).encode()]

    def prepare(self, content: bytes, random: Random) -> None:
        folder = self.root / "tokens" / "0123456789abcdef"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "store.json").write_bytes(content)

    def read(self) -> None:
        from gcdbench.data.store.store_folder import StoreFolder, list_stores
        from gcdbench.data.store.token_store import TokenStore

        list_stores(self.root)

        class Here(StoreFolder):
            key = "0123456789abcdef"  # type: ignore[assignment]

        TokenStore(Here(self.root, "tokens", {}))


class Jobs(Target):
    name = "jobs of a sweep"
    share = 6

    @cached_property
    def seeds(self) -> list[bytes]:
        from gcdbench.backbone.timm_import import import_timm
        from gcdbench.config.resolve import Layer
        from gcdbench.experiments.job_file import JobEnvironment, JobFile
        from gcdbench.prepare.request import RunRequest, resolve_request

        import_timm()
        rows = (
            RunRequest("rlcd", "digits", seeds=(0,), study=Layer("a row", {"train.epochs": 2})),
            RunRequest("simgcd", "cub", "paper", seeds=(3,), backbone="dino", settings={"train.lr": 0.1}),
        )
        for row in rows:
            resolve_request(row)  # what is imported on the way is imported now, not while a damaged file is read
        JobFile(JobEnvironment("runs", "data", "cache", workers=2), rows, ("abc", "def")).write(self.root / "seed.json")
        return [(self.root / "seed.json").read_bytes()]

    def prepare(self, content: bytes, random: Random) -> None:
        (self.root / "job.json").write_bytes(content)

    def read(self) -> None:
        from gcdbench.experiments.job_file import JobFile
        from gcdbench.prepare.request import resolve_request

        job = JobFile.read(self.root / "job.json")
        for request in job.requests:
            resolve_request(request)
