"""One target per parser of an outside format: what it is given, and what it may answer.

A target may return, or raise a GcdbenchError, which is a sentence. Everything else is a finding.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random

import numpy as np
import torch
from PIL import Image

from tests import trees
from tests.fuzz.mutate import mutate

HERE = Path(__file__).parents[1]


class Target:
    """Writes a damaged file below ``root`` and reads it with the code under test."""

    name: str
    share: int = 1
    """Cases relative to the other targets: quick ones get more."""

    def __init__(self, root: Path) -> None:
        self.root = root / self.name
        self.root.mkdir(parents=True, exist_ok=True)

    @cached_property
    def seeds(self) -> list[bytes]:
        """Whole files to begin with."""
        raise NotImplementedError

    def case(self, random: Random) -> bytes:
        """The content of one case."""
        return mutate(random.choice(self.seeds), random, tuple(self.seeds))

    def prepare(self, content: bytes, random: Random) -> None:
        """Write it."""
        raise NotImplementedError

    def read(self) -> None:
        """Parse it."""
        raise NotImplementedError


@dataclass
class _Inside:
    """Every item of an index lies inside its folder."""

    dataset: object

    def check(self) -> None:
        from gcdbench.data.datasets.files import FileDataset

        index = self.dataset.index("train")  # type: ignore[attr-defined]
        assert len(index.items) == len(index.labels)
        if isinstance(self.dataset, FileDataset):
            for row in range(min(len(index), 50)):
                folder = self.dataset._part("train")[0].resolve()
                assert self.dataset.path("train", row).resolve().is_relative_to(folder), index.items[row]


class Mat(Target):
    name = "mat"
    share = 3

    @cached_property
    def seeds(self) -> list[bytes]:
        from scipy.io import savemat

        found = []
        fields = [(n, object) for n in ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")]
        for count, packed in ((3, False), (3, True), (1, False)):
            table = np.empty((1, count), dtype=fields)
            for i in range(count):
                table[0, i] = (1, 1, 9, 9, i + 1, f"{i + 1:05d}.jpg")
            stream = io.BytesIO()
            savemat(stream, {"annotations": table}, do_compression=packed)
            found.append(stream.getvalue())
        return found

    def prepare(self, content: bytes, random: Random) -> None:
        path = self.root / "stanford_cars/devkit/cars_train_annos.mat"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def read(self) -> None:
        from gcdbench.data.datasets.scars import StanfordCars

        _Inside(StanfordCars(self.root)).check()


class Pickles(Target):
    name = "pickle batches"
    share = 12

    @cached_property
    def seeds(self) -> list[bytes]:
        data = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)
        small = {b"labels": [1, 2], b"data": data[:, :8].copy(), b"label_names": [b"a"] * 10}
        batch = {b"batch_label": b"x", b"labels": [1, 2], b"data": data, b"filenames": [b"f.png"] * 2}
        nested: list[object] = []
        for _ in range(40):
            nested = [nested, nested]
        odd = {b"labels": nested, b"data": data, b"label_names": nested}
        found = [pickle.dumps(c, protocol=p) for c in (small, small, batch, odd) for p in (0, 2, 4)]
        return [*found, pickle.dumps({b"data": np.array([object()])}, 2), pickle.dumps(Random(1).getstate(), 2)]

    def prepare(self, content: bytes, random: Random) -> None:
        folder = self.root / "cifar-10-batches-py"
        folder.mkdir(exist_ok=True)
        for number in range(1, 6):
            (folder / f"data_batch_{number}").write_bytes(content)
        (folder / "batches.meta").write_bytes(content)

    def read(self) -> None:
        from gcdbench.data.datasets.cifar import Cifar10
        from gcdbench.errors import DataError

        with contextlib.suppress(DataError):
            Cifar10(self.root)._class_names()
        _Inside(Cifar10(self.root)).check()


class Cub(Target):
    name = "CUB text"
    share = 6
    files = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")

    @cached_property
    def seeds(self) -> list[bytes]:
        names = "".join(f"{i} {i:03d}.Bird/Bird_{i}.jpg\n" for i in range(1, 9))
        numbers = "".join(f"{i} {i}\n" for i in range(1, 9))
        return [
            names.encode(),
            numbers.encode(),
            "".join(f"{i} {i % 2}\n" for i in range(1, 9)).encode(),
            names.encode(),
        ]

    def prepare(self, content: bytes, random: Random) -> None:
        folder = self.root / "CUB_200_2011"
        folder.mkdir(exist_ok=True)
        for name, seed in zip(self.files, self.seeds, strict=True):
            (folder / name).write_bytes(seed)
        (folder / random.choice(self.files)).write_bytes(content)

    def read(self) -> None:
        from gcdbench.data.datasets.cub import Cub as Dataset

        _Inside(Dataset(self.root)).check()


class Aircraft(Target):
    name = "aircraft text"
    share = 6

    @cached_property
    def seeds(self) -> list[bytes]:
        return ["".join(f"{i:07d} Type {i % 100:03d} B\n" for i in range(120)).encode()]

    def prepare(self, content: bytes, random: Random) -> None:
        path = self.root / "fgvc-aircraft-2013b/data/images_variant_trainval.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def read(self) -> None:
        from gcdbench.data.datasets.aircraft import Aircraft as Dataset

        _Inside(Dataset(self.root)).check()


class Csv(Target):
    name = "CSV labels"
    share = 8

    @cached_property
    def seeds(self) -> list[bytes]:
        rows = "path,label\n" + "".join(f"shots/{i}.png,{'' if i % 3 else f'kind {i % 4}'}\n" for i in range(9))
        return [
            rows.encode(),
            b"\xef\xbb\xbf" + rows.encode(),
            rows.replace("\n", "\r\n").encode(),
            b'path,label\n"a,b"',
        ]

    def prepare(self, content: bytes, random: Random) -> None:
        (self.root / "labels.csv").write_bytes(content)

    def read(self) -> None:
        from gcdbench.data.datasets.folder import ImageFolder

        _Inside(ImageFolder(self.root)).check()


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

        from gcdbench.config import resolve, run_id
        from gcdbench.engine.request import RunRequest, _seeds, _with_file

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

        from gcdbench.coercion import parse_assignment
        from gcdbench.config import Layer, resolve

        key, value = parse_assignment(self.text)
        layers = [Layer("--set", {key: value})]
        resolve(method="m", dataset="d", recipe="r", seed=0, method_config=RLCD.Config, layers=layers)


class ExperimentFile(Target):
    name = "TOML experiment"
    share = 4

    @cached_property
    def seeds(self) -> list[bytes]:
        files = [p.read_bytes() for p in sorted((HERE.parent / "configs").glob("*.toml"))]
        return [f for f in files if "experiment" in tomllib.loads(f.decode())][:4]

    def prepare(self, content: bytes, random: Random) -> None:
        (self.root / "e.toml").write_bytes(content)

    def read(self) -> None:
        from gcdbench.results.experiment import parse_experiment

        for row in parse_experiment(self.root / "e.toml").rows:
            row.settings_on("cub")


class Records(Target):
    name = "records"
    share = 2

    @cached_property
    def seeds(self) -> list[bytes]:
        from tests.results.records import record

        return [json.dumps(record().as_dict()).encode()]

    def prepare(self, content: bytes, random: Random) -> None:
        (self.root / "record.json").write_bytes(content)

    def read(self) -> None:
        from gcdbench.results.record import read_record

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
        from gcdbench.results.rundir import RunDirectory

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
        from gcdbench.engine import checkpoint

        state = {**dict.fromkeys(checkpoint.KEYS), "run": "me", "lane": {"w": torch.arange(3.0), "s": (1, "x", None)}}
        checkpoint.write(self.root / "seed.pt", state)
        return [(self.root / "seed.pt").read_bytes()]

    def prepare(self, content: bytes, random: Random) -> None:
        import hashlib

        path = self.root / "checkpoint/last.pt"
        path.parent.mkdir(exist_ok=True)
        if random.random() < 0.7:  # as if somebody had damaged it on purpose and mended the checksum
            content = content[:-73]
            content += b"\nsha256 " + hashlib.sha256(content).hexdigest().encode() + b"\n"
        path.write_bytes(content)

    def read(self) -> None:
        from gcdbench.engine import checkpoint

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


class Images(Target):
    name = "images"
    share = 6

    @cached_property
    def seeds(self) -> list[bytes]:
        random, found = np.random.default_rng(0), []
        pixels = random.integers(0, 256, (9, 11, 3), dtype=np.uint8)
        for form in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "PPM"):
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, form)
            found.append(stream.getvalue())
        for mode in ("CMYK", "L", "P", "I;16", "1"):
            stream = io.BytesIO()
            Image.fromarray(pixels).convert("L" if mode == "I;16" else mode).convert(mode).save(stream, "TIFF")
            found.append(stream.getvalue())
        return found

    def prepare(self, content: bytes, random: Random) -> None:
        (self.root / "i.jpg").write_bytes(content)

    def read(self) -> None:
        from gcdbench.data.datasets.files import open_rgb

        assert open_rgb(self.root / "i.jpg").mode == "RGB"


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
        from gcdbench.store.folder import StoreFolder, list_stores
        from gcdbench.store.tokens import TokenStore

        list_stores(self.root)

        class Here(StoreFolder):
            key = "0123456789abcdef"  # type: ignore[assignment]

        TokenStore(Here(self.root, "tokens", {}))


class Archives(Target):
    name = "archives"
    share = 2

    @cached_property
    def seeds(self) -> list[bytes]:
        import gzip

        from tests.data.test_fetch import tar_of

        plain = tar_of({"folder/a.txt": b"hello", "folder/b.txt": b"x" * 600})
        return [plain, gzip.compress(plain)]

    def prepare(self, content: bytes, random: Random) -> None:
        (self.root / "a.tar").write_bytes(content)
        (self.root / "out").mkdir(exist_ok=True)

    def read(self) -> None:
        import tarfile

        from gcdbench.errors import DataError

        # Members are looked at as `unpack` would extract them; what it writes is another test's business.
        try:
            with tarfile.open(self.root / "a.tar") as tar:
                for member in tar:
                    kept = tarfile.data_filter(member, str(self.root / "out"))
                    where = (self.root / "out" / kept.name).resolve()
                    assert where.is_relative_to((self.root / "out").resolve()), member.name
        except (tarfile.TarError, OSError, EOFError, ValueError) as fault:
            raise DataError(str(fault)) from fault


TARGETS: tuple[Callable[[Path], Target], ...] = (
    Mat, Pickles, Cub, Aircraft, Csv, ConfigFile, Assignments, ExperimentFile, Records, Epochs, Predictions,
    Checkpoints, Weights, Images, Stores, Archives,
)  # fmt: skip

assert trees.WRITERS  # the official layouts these seeds are small copies of
