from __future__ import annotations

import torch
from safetensors import safe_open

from gcdbench.backbone import pretrain_digits
from gcdbench.backbone.weights import weights_hash


def test_pretraining_is_reproducible_and_reads_no_label(monkeypatch, capsys):
    from gcdbench.data.datasets.digits import Digits

    one = pretrain_digits.pretrain(epochs=1)
    losses = [line for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert len(losses) == 1
    # Shuffled labels must not change a bit.
    pixels, labels = Digits.__dict__["_data"].func(Digits.__new__(Digits))
    monkeypatch.setattr(Digits, "_data", (pixels, labels[::-1].copy()))
    two = pretrain_digits.pretrain(epochs=1, verbose=False)
    assert weights_hash(one) == weights_hash(two)


def test_the_script_writes_a_file_and_compares_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    pretrain_digits.main([str(tmp_path / "x.safetensors"), "--epochs", "1"])
    assert "other than the shipped weights (20a7b91d930e8f8b)" in capsys.readouterr().out
    assert (tmp_path / "x.safetensors").stat().st_size < 1_000_000


def test_shipped_file_says_how_it_was_made():
    from importlib import resources

    with (
        resources.as_file(resources.files("gcdbench.backbone") / "digits_vit.safetensors") as path,
        safe_open(str(path), "pt") as file,
    ):
        facts = file.metadata()
    assert facts == {
        "script": "gcdbench.backbone.pretrain_digits",
        "epochs": str(pretrain_digits.EPOCHS),
        "seed": "0",
    }


def test_distortion_keeps_the_picture_in_view():
    pictures = pretrain_digits.images()[:50]
    views = pretrain_digits.distort(pictures, torch.Generator().manual_seed(0))
    assert views.shape == (50, 1, 16, 16)
    assert (views.mean((1, 2, 3)) > 0.5 * pretrain_digits.centre(pictures).mean((1, 2, 3))).all()
