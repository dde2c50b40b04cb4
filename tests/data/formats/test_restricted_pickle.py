from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from gcdbench.data.formats.restricted_pickle import load_batch
from gcdbench.errors import DataError


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def test_a_pickle_cannot_run_anything(tmp_path):
    target = tmp_path / "ran"
    file = tmp_path / "batch"
    file.write_bytes(pickle.dumps({b"data": Bomb(target)}))
    with pytest.raises(DataError, match="not allowed"):
        load_batch(file)
    assert not target.exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_arrays_and_lists_come_through(protocol, tmp_path):
    file = tmp_path / "batch"
    content = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2]}
    file.write_bytes(pickle.dumps(content, protocol=protocol))
    read = load_batch(file)
    assert (read[b"data"] == content[b"data"]).all()
    assert read[b"labels"] == [1, 2]


@pytest.mark.parametrize("content", [b"", b"junk", b"\x80\x02N.", b"\x80\x02]q\x00."])
def test_damage_is_a_sentence(content, tmp_path):
    file = tmp_path / "batch"
    file.write_bytes(content)
    with pytest.raises(DataError, match="not a CIFAR batch"):
        load_batch(file)


def test_a_batch_as_python_2_wrote_it(tmp_path):
    """The official files come from Python 2: byte strings everywhere, numpy's old module names."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value  # SHORT_BINSTRING

    pixels = bytes(range(6))
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85" + text(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01K\x02K\x03\x86" + dtype + b"\x89" + text(pixels) + b"tb"
    content = b"\x80\x02}(" + text(b"data") + array + state + text(b"labels") + b"](K\x05K\x07eu."
    file = tmp_path / "batch"
    file.write_bytes(content)
    assert pickle.loads(content, encoding="bytes")[b"labels"] == [5, 7]
    read = load_batch(file)
    assert read[b"data"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read[b"labels"] == [5, 7]


@pytest.mark.parametrize(
    "hostile",
    [
        np.array([object()], dtype=object),
        np.array(["text"]),
        np.array([1.5]),
        np.zeros(3, dtype=[("a", "u1")]),
        np.arange(3, dtype=">i8"),
        np.float64(1.5),
        os.path.join,
        type("Own", (), {}),
        memoryview,
    ],
    ids=lambda value: type(value).__name__,
)
def test_nothing_but_plain_arrays_is_let_in(hostile, tmp_path):
    try:
        content = pickle.dumps({b"data": hostile}, protocol=2)
    except (pickle.PicklingError, AttributeError):  # a class that exists here only: name any other
        content = b"\x80\x02cposix\nsystem\n."
    file = tmp_path / "batch"
    file.write_bytes(content)
    with pytest.raises(DataError, match="not allowed"):
        load_batch(file)


def test_an_array_may_not_claim_more_than_it_holds(tmp_path):
    good = pickle.dumps({b"data": np.arange(200, dtype=np.uint8)}, protocol=4)
    file = tmp_path / "batch"
    file.write_bytes(good.replace(b"K\xc8\x85", b"M\xff\xff\x85"))
    assert file.read_bytes() != good
    with pytest.raises(DataError, match="another size than it claims"):
        load_batch(file)


def test_lists_within_lists_take_no_time(tmp_path):
    """Forty lists, each of the one before twice: 2^40 labels, if anybody counted them."""
    from gcdbench.data.datasets.cifar import Cifar10

    nested: list = [1]
    for _ in range(40):
        nested = [nested, nested]
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    content = {b"labels": nested, b"data": np.zeros((2, 3072), dtype=np.uint8), b"label_names": nested}
    for name in (*Cifar10.files["train"], "batches.meta"):
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(DataError, match="one label per row"):
        Cifar10(tmp_path).index("train")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"})" + b"\x85" * 1_000_000 + b"K\x01s.", "keys other than text"),  # hashing this would overflow the stack
        (b"})" + b"\x85" * 1_000_000 + b"K\x01d.", "not a CIFAR batch"),
        (b"\x80\x02c_codecs\nencode\nN}U\x0c__defaults__(K\x07ts\x86b.", "a state for something that has none"),
        (b"\x80\x02cnumpy\nndarray\n)\x81.", "the operation"),  # NEWOBJ
        (b"\x80\x04\x8f.", "the operation"),  # an empty set
        # A type whose name is a tower of 2^60 tuples: nobody may spell it.
        (
            b"\x80\x02]()q\x01" + b"h\x01h\x01\x86q\x01" * 60 + b"ecnumpy\ndtype\nh\x01\x85R.",
            "where text should be",
        ),
        (b"Pid\n.", "the operation"),  # a persistent object
    ],
)
def test_towers_states_and_other_operations_are_refused(content, words, tmp_path):
    file = tmp_path / "batch"
    file.write_bytes(content)
    with pytest.raises(DataError, match=words):
        load_batch(file)


def test_a_number_in_the_file_reserves_no_memory(tmp_path):
    """Nine bytes that would take four gigabytes in the unpickler written in C."""
    file = tmp_path / "batch"
    file.write_bytes(b"}r\xff\xff\xff\x0f.")
    assert load_batch(file) == {}
