"""The commands that are tortured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.runs import fewer_digits
from tests.torture.scene import Workload

SMALL = ("--device", "cpu", "--set", "eval.every=1", "--checkpoint-every", "0.01", "--epochs", "2")


class _Patch:
    """As much of pytest's monkeypatch as is needed where nothing is ever put back."""

    @staticmethod
    def setattr(where: object, name: str, value: object) -> None:
        setattr(where, name, value)


def few() -> None:
    """The first rows of the embedded digits."""
    fewer_digits(_Patch)


def quick_saves() -> None:
    """As many checkpoints within an epoch as the interval allows, whatever they cost."""
    from gcdbench.training import loop

    few()
    loop.SHARE = 0


def digits(cache: Path) -> Workload:
    """Two lanes on digits."""
    arguments = ("run", "--method", "rlcd:paper,rlcd:released", "--dataset", "digits", *SMALL, "--cache", str(cache))
    return Workload("two lanes on digits", arguments, quick_saves)


def stored(cache: Path) -> Workload:
    """One run on stored views and stored evaluation tokens."""
    arguments = (
        "run",
        "--method",
        "rlcd",
        "--dataset",
        "digits",
        *SMALL,
        "--train-views",
        "2",
        "--store-tokens",
        "fp32",
    )
    return Workload("stored tokens of digits", (*arguments, "--cache", str(cache)), quick_saves)


def photos(folder: Path, cache: Path, more: Sequence[str] = ()) -> Workload:
    """One run on image files, some of them unlabelled."""
    sizes = ("--set", "views.resize=18", "--set", "views.crop=16", "--set", "train.batch_size=16")
    arguments = ("run", "--method", "rlcd", "--dataset", "folder", "--backbone", "digits-vit", "--k", "4", *SMALL)
    place = ("--data-root", str(folder), "--cache", str(cache))
    return Workload("image files", (*arguments, *sizes, *place, *more), quick_saves)


def write_photos(folder: Path) -> list[Path]:
    """Images of two known classes, and unlabelled ones of four."""
    random, made = np.random.default_rng(5), []
    colours = random.integers(0, 256, (4, 3))
    for name, classes, count in (("cat", [0], 16), ("dog", [1], 16), ("unlabelled", [0, 1, 2, 3], 10)):
        for cls in classes:
            for number in range(count):
                noise = random.integers(-40, 40, (20, 24, 3)) + colours[cls]
                path = folder / name / f"{cls}-{number:02d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(path)
                made.append(path)
    return made
