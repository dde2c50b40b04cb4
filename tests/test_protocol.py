from __future__ import annotations

import dataclasses

import pytest

from gcdbench.protocol import Protocol, difference

BASE = Protocol("cub", "i", "s", "unlabelled", {"cluster_accuracy": 1}, 200, "true", "last")


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "scars"},
        {"index_hash": "j"},
        {"split_hash": "t"},
        {"scored_rows": "test"},
        {"evaluators": {"cluster_accuracy": 2}},
        {"k": 231},
        {"k_source": "given"},
        {"selection": "best-base-test"},
        {"reads": ("test labels",)},
    ],
)
def test_every_field_changes_the_fingerprint(change):
    other = dataclasses.replace(BASE, **change)
    assert other.fingerprint() != BASE.fingerprint()
    assert set(difference(BASE.as_dict(), other.as_dict())) == set(change)


def test_equal_protocols_have_equal_fingerprints():
    assert dataclasses.replace(BASE).fingerprint() == BASE.fingerprint()
    assert difference(BASE.as_dict(), BASE.as_dict()) == {}
