"""MATLAB files: what scipy writes and reads, read by us; damage is a sentence and never a crash."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from gcdbench.data.formats.matfile import MatError, read_variable


@pytest.fixture(params=[False, True], ids=["plain", "compressed"])
def written(request, tmp_path):
    def write(**variables):
        path = tmp_path / "x.mat"
        savemat(str(path), variables, do_compression=request.param)
        return path

    return write


def table(count):
    fields = [("class", object), ("fname", object), ("box", object)]
    rows = np.empty((1, count), dtype=fields)
    for i in range(count):
        rows[0, i] = (i + 1, f"{i:05d}.jpg", np.arange(i % 4, dtype=np.float64))
    return rows


def test_structs_are_what_scipy_reads(written):
    path = written(other=np.arange(5), annotations=table(300), last="x")
    ours = read_variable(path, "annotations")
    theirs = loadmat(str(path), squeeze_me=True, struct_as_record=False)["annotations"]
    assert len(ours) == len(theirs) == 300
    for one, two in zip(ours, theirs, strict=True):
        assert one["fname"] == two.fname
        assert one["class"].tolist() == [getattr(two, "class")]
        assert one["box"].tolist() == np.atleast_1d(two.box).tolist()
    assert read_variable(path, "other").tolist() == [0, 1, 2, 3, 4]
    assert read_variable(path, "last") == "x"


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_numbers_of_every_type(dtype, written):
    path = written(x=np.array([0, 1, 100], dtype=dtype))
    assert read_variable(path, "x").tolist() == [0, 1, 100]


def test_cells_and_text(written):
    names = np.empty((1, 3), dtype=object)
    names[0] = ["Audi A4", "Škoda", ""]
    path = written(class_names=names)
    found = read_variable(path, "class_names")
    assert found[:2] == ["Audi A4", "Škoda"]
    assert len(found) == 3


def test_big_endian(tmp_path):
    """A file of one double, written by hand in the other byte order."""
    import struct

    def element(kind, content):
        return struct.pack(">II", kind, len(content)) + content + bytes(-len(content) % 8)

    matrix = element(6, struct.pack(">II", 6, 0)) + element(5, struct.pack(">ii", 1, 1)) + element(1, b"x")
    matrix += element(9, struct.pack(">d", 2.5))
    path = tmp_path / "big.mat"
    path.write_bytes(b"MATLAB 5.0".ljust(124) + b"\x01\x00MI" + element(14, matrix))
    assert read_variable(path, "x").tolist() == [2.5]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no MATLAB file"),
        (b"junk" * 100, "no MATLAB file"),
        (b"MATLAB 7.3 MAT-file".ljust(512), "save -v7"),
        (b"MATLAB 5.0".ljust(124) + b"\x00\x01IM", "has no variable"),
        (b"MATLAB 5.0".ljust(124) + b"\x00\x01IM" + b"\x0e\0\0\0\xff\xff\xff\x7f", "longer than the file"),
        (b"MATLAB 5.0".ljust(124) + b"\x00\x01IM" + b"\x0f\0\0\0\x04\0\0\0junk", "compressed part is damaged"),
    ],
)
def test_damage_is_told(content, words, tmp_path):
    path = tmp_path / "x.mat"
    path.write_bytes(content)
    with pytest.raises(MatError, match=words):
        read_variable(path, "annotations")


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    import struct
    import zlib

    monkeypatch.setattr("gcdbench.data.formats.matfile.MAX_BYTES", 1 << 20)
    packed = zlib.compress(bytes(8 << 20))
    path = tmp_path / "bomb.mat"
    path.write_bytes(b"MATLAB 5.0".ljust(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(packed)) + packed)
    with pytest.raises(MatError, match="too large"):
        read_variable(path, "annotations")


def matrix(flags, dimensions):
    """A variable 'annotations' with flags and dimensions as given: (type, bytes) each."""
    import struct

    def element(kind, content):
        return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)

    body = element(*flags) + element(*dimensions) + element(1, b"annotations") + element(9, bytes(8))
    return b"MATLAB 5.0".ljust(124) + b"\x00\x01IM" + element(14, body)


@pytest.mark.parametrize(
    ("flags", "dimensions"),
    [
        ((9, np.array([np.nan]).tobytes()), (5, bytes(8))),
        ((6, bytes(8)), (9, np.array([np.inf, 1]).tobytes())),
        ((6, b""), (5, bytes(8))),
        ((6, bytes(8)), (5, np.array([-1, 1], dtype=np.int32).tobytes())),
        ((6, bytes(8)), (5, np.full(200_000, 2**31 - 1, dtype=np.int32).tobytes())),
    ],
)
def test_sizes_that_cannot_be_are_told_at_once(flags, dimensions, tmp_path, cli):
    path = tmp_path / "stanford_cars/devkit/cars_train_annos.mat"
    path.parent.mkdir(parents=True)
    path.write_bytes(matrix(flags, dimensions))
    with pytest.raises(MatError, match="type or|impossible"):
        read_variable(path, "annotations")
    for command in ("split", "verify"):
        answer = cli("data", command, "scars", "--data-root", tmp_path)
        assert answer.code == 4
        assert "Traceback" not in answer.stderr
