"""Stored tokens are the tokens, rounded as the type says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gcdbench.data.store.store_folder import StoreFolder
from gcdbench.data.store.token_store import CHECKSUMS, STORED, TOKENS, TokenKind, TokenStore, write_tokens
from gcdbench.errors import DataError
from tests.support.memory import resident


def write(tmp_path, tokens, dtype="fp32", key=0, told=None):
    store = StoreFolder(tmp_path, "tokens", {"key": key, "dtype": dtype})
    tell = (lambda text: None) if told is None else told.append
    kind = TokenKind(len(tokens), tuple(tokens.shape[1:]), dtype)
    write_tokens(store, "the tokens", kind, lambda n: tokens[n:].split(3), tell)
    return store


@pytest.fixture
def tokens():
    return torch.randn(10, 5, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", list(STORED))
def test_tokens_come_back(dtype, tmp_path, tokens):
    store = TokenStore(write(tmp_path, tokens, dtype))
    rows = np.array([7, 0, 7, 9])
    found = store.read(rows)
    assert found.dtype == STORED[dtype]
    assert torch.equal(found, tokens[rows].to(STORED[dtype]))
    assert len(store) == 10
    if dtype == "fp32":
        assert torch.equal(found, tokens[rows])


def test_the_size_is_told_before(tmp_path, tokens):
    told = []
    store = write(tmp_path, tokens, "bf16", told=told)
    assert told == [f"Writing the tokens, about 0.8 kB, to {store.path} (once)."]
    assert (store.path / TOKENS).stat().st_size == 10 * 5 * 8 * 2


def test_numbers_that_do_not_fit_are_refused(tmp_path, tokens):
    with pytest.raises(DataError, match="too large for fp16: store them as bf16 or fp32"):
        write(tmp_path, tokens * 1e6, "fp16")
    write(tmp_path, tokens * 1e6, "bf16")


def test_damage_is_found(tmp_path, tokens):
    store = write(tmp_path, tokens)
    path = store.path / TOKENS
    content = bytearray(path.read_bytes())
    content[4 * 5 * 8 * 3 + 1] ^= 4
    path.write_bytes(content)
    opened = TokenStore(store)
    opened.read(np.array([0, 1, 2, 4]))
    with pytest.raises(DataError, match="checksum of row 3 does not match"):
        opened.read(np.array([4, 3]))
    path.write_bytes(content[:-4])
    with pytest.raises(DataError, match="is damaged"):
        TokenStore(store)
    path.write_bytes(content)
    (store.path / CHECKSUMS).unlink()
    with pytest.raises(DataError, match="is damaged"):
        TokenStore(store)


def test_reading_does_not_grow_memory(tmp_path):
    """240 MB pass through the memory map; what stays is little."""
    tokens = torch.randn(60, 1000, 1000)
    opened = TokenStore(write(tmp_path, tokens))
    del tokens
    opened.read(np.arange(3))
    before = resident()
    for start in range(0, 60, 3):
        opened.read(np.arange(start, start + 3))
    assert resident() - before < 50e6
