"""Parsers of what data sets are made of."""

from __future__ import annotations

import contextlib
import io
import pickle
from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np
from PIL import Image

from tests.fuzz.target import Target


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
