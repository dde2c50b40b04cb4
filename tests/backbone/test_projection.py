"""The PCA of trunk tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from gcdbench.backbone.projection import fit_projection, read_projection
from gcdbench.errors import DataError, UsageError


def tokens(rows: int = 40, cells: int = 4, channels: int = 12, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    mixing = torch.randn(channels, channels, generator=random)
    found = torch.randn(rows, cells, channels, generator=random) @ mixing + 5
    return torch.cat([found.mean(1, keepdim=True), found], dim=1)


def test_it_is_a_pca_of_the_cells_up_to_one_scale():
    data = tokens()
    found = fit_projection(data.split(7), 5)
    cells = data[:, 1:].flatten(0, 1).double().numpy()
    theirs = PCA(5, svd_solver="full").fit(cells)
    ours = found(data.double())[:, 1:].flatten(0, 1).numpy()
    expected = theirs.transform(cells)
    expected /= np.sqrt((expected**2).mean())  # on average, unit variance
    signs = np.sign((ours * expected).sum(0))
    assert np.allclose(ours, expected * signs, atol=1e-8)
    assert float(found.share) == pytest.approx(theirs.explained_variance_ratio_.sum(), abs=1e-9)
    assert np.allclose((ours**2).mean(), 1)


def test_signs_are_fixed():
    found = fit_projection([tokens()], 12)
    columns = found.components
    assert bool((columns.gather(0, columns.abs().argmax(0, keepdim=True)) > 0).all())


def test_the_same_tokens_give_the_same_bits():
    one, two = (fit_projection(tokens().split(8), 6) for _ in range(2))
    assert one.digest() == two.digest()
    assert one.digest() != fit_projection(tokens(seed=1).split(8), 6).digest()


def test_the_mean_token_is_not_counted_among_the_cells():
    data = tokens()
    changed = data.clone()
    changed[:, 0] = 100
    assert fit_projection([data], 3).digest() == fit_projection([changed], 3).digest()


def test_it_comes_back_from_its_file_whatever_it_was_moved_to(tmp_path):
    found = fit_projection([tokens()], 4)
    digest = found.digest()
    found.float().write(tmp_path / "p.safetensors")
    again = read_projection(tmp_path / "p.safetensors")
    assert again.digest() == digest
    assert torch.equal(again(tokens().double()), fit_projection([tokens()], 4)(tokens().double()))


def test_half_precision_stays_outside():
    data = tokens()
    found = fit_projection([data], 4).float()
    outside = found(data)
    with torch.autocast("cpu", torch.bfloat16):
        assert (data @ torch.ones(12, 1)).dtype == torch.bfloat16  # it is on
        inside = found(data)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)


@pytest.mark.parametrize("content", [b"", b"no tensors", None])
def test_a_damaged_file_is_a_sentence(tmp_path, content):
    file = tmp_path / "p.safetensors"
    fit_projection([tokens()], 4).write(file)
    file.write_bytes(file.read_bytes()[:-9] if content is None else content)
    with pytest.raises(DataError, match="cannot be read"):
        read_projection(file)
    with pytest.raises(DataError, match="does not exist"):
        read_projection(tmp_path / "no.safetensors")


def test_numbers_that_do_not_fit_together_are_a_sentence(tmp_path):
    from safetensors.torch import save_file

    file = tmp_path / "p.safetensors"
    good = {"mean": torch.zeros(3), "components": torch.zeros(3, 2), "share": torch.tensor(0.5)}
    for name, values in (("mean", torch.zeros(4)), ("share", torch.tensor(float("nan")))):
        save_file({**good, name: values}, file)
        with pytest.raises(DataError, match="do not fit together"):
            read_projection(file)


def test_more_dimensions_than_directions_are_refused():
    with pytest.raises(UsageError, match="at most 12 directions"):
        fit_projection([tokens()], 13)
    with pytest.raises(UsageError, match="at most 3 directions"):
        fit_projection([tokens(1)], 4)
    with pytest.raises(DataError, match="same tokens for every image"):
        fit_projection([torch.ones(10, 5, 3)], 2)
