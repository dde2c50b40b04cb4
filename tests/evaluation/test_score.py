from __future__ import annotations

import numpy as np
import pytest

from gcdbench.errors import DataError, UsageError
from gcdbench.evaluation.score import score_file


@pytest.mark.parametrize("case", range(6))
def test_score_equals_published(case, golden, tmp_path, cli):
    data = np.load(golden / "cluster_accuracy.npz")
    file = tmp_path / "x.npz"
    np.savez(file, **{n: data[f"{case}.{n}"] for n in ("y_true", "y_pred", "num_base")})
    got = cli("score", file, "--json").json()
    assert set(got) == {"v1", "v2", "v2b", "nmi", "ari"}
    for variant in ("v1", "v2", "v2b"):
        assert [got[variant][k] for k in ("all", "base", "novel")] == data[f"{case}.{variant}"].tolist()
    assert "Cluster accuracy" in cli("score", file).stdout


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y_true": [0], "y_pred": [0]}, "no array 'num_base'"),
        ({"y_true": [0.5], "y_pred": [0], "num_base": 1}, "whole numbers"),
        ({"y_true": [0, 1], "y_pred": [0], "num_base": 1}, "must agree"),
        ({"y_true": [-1], "y_pred": [0], "num_base": 1}, "negative"),
        ({"y_true": [0], "y_pred": [10**9], "num_base": 1}, "from 0"),
        ({"y_true": [[0]], "y_pred": [0], "num_base": 1}, "whole numbers"),
        ({"y_true": [0], "y_pred": [0], "num_base": [1, 2]}, "one whole number"),
        ({"y_true": [0], "y_pred": [0], "num_base": -1}, "not negative"),
        ({"y_true": np.zeros(0, int), "y_pred": np.zeros(0, int), "num_base": 1}, "no rows"),
    ],
)
def test_bad_arrays_are_sentences(arrays, words, tmp_path):
    file = tmp_path / "x.npz"
    np.savez(file, **arrays)
    with pytest.raises(UsageError, match=words):
        score_file(file)


def test_bad_files_are_sentences(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        score_file(tmp_path / "none.npz")
    file = tmp_path / "x.npz"
    file.write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match="not an .npz"):
        score_file(file)
    np.savez(file, y_true=np.array([{}], dtype=object), y_pred=[0], num_base=1)
    with pytest.raises(DataError, match="not an .npz"):
        score_file(file)
    np.save(tmp_path / "y.npy", np.zeros(3))
    with pytest.raises(DataError, match="not an .npz"):
        score_file(tmp_path / "y.npy")
