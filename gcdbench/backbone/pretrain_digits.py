"""Trains the small ViT that ships for the embedded digits, by self-supervision: no label is read.

    python -m gcdbench.backbone.pretrain_digits OUT.safetensors

Two randomly distorted views of an image pass through the ViT. From each view's CLS a small decoder must draw the
undistorted image, and the two CLS must find each other among those of the other images (InfoNCE). The first makes
features that know the stroke, the second makes them ignore the distortion. One thread and fixed seeds: the same
machine gives the same weights.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from gcdbench.backbone.catalogue import CATALOGUE
from gcdbench.backbone.load import build, load_backbone
from gcdbench.backbone.weights import weights_hash
from gcdbench.config.sections import BackboneConfig
from gcdbench.data.datasets.digits import Digits
from gcdbench.system.seeding import fenced_rng, generator
from gcdbench.toolbox.losses import info_nce

SIDE, WIDE = 16, 18
"""Side of a view, and of the resized image it is taken from."""
EPOCHS = 200
BATCH = 64
RATE = 1e-3
TEMPERATURE = 0.3
DRAWING_WEIGHT = 20.0


def images() -> Tensor:
    """(1797, 1, 18, 18) grey images in 0..1, without their labels."""
    digits = Digits(Path("."))
    rows = range(len(digits.index("train")))
    resized = [digits.image("train", r).convert("L").resize((WIDE, WIDE), Image.Resampling.BICUBIC) for r in rows]
    return torch.from_numpy(np.stack([np.asarray(i) for i in resized])).float().unsqueeze(1) / 255


def distort(pictures: Tensor, random: torch.Generator) -> Tensor:
    """A random turn, shear, stretch and shift of each picture, cut to a view."""

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(len(pictures), generator=random) * (high - low) + low

    turn, shear = uniform(-15, 15) * math.pi / 180, uniform(-0.25, 0.25)
    size, stretch = uniform(0.85, 1.15), uniform(0.9, 1.1)
    x, y = uniform(-0.18, 0.18), uniform(-0.18, 0.18)
    top = torch.stack([turn.cos() * size, (shear - turn.sin()) * size, x], dim=1)
    bottom = torch.stack([turn.sin() * size * stretch, turn.cos() * size * stretch, y], dim=1)
    matrix = torch.stack([top, bottom], dim=1) * torch.tensor([SIDE / WIDE, SIDE / WIDE, 1.0])
    grid = F.affine_grid(matrix, [len(pictures), 1, SIDE, SIDE], align_corners=False)
    return F.grid_sample(pictures, grid, align_corners=False)


def centre(pictures: Tensor) -> Tensor:
    """The undistorted view."""
    edge = (WIDE - SIDE) // 2
    return pictures[:, :, edge : edge + SIDE, edge : edge + SIDE]


def as_input(views: Tensor) -> Tensor:
    """Grey 0..1 views as the network sees them in a run."""
    return ((views - 0.5) / 0.5).expand(-1, 3, -1, -1)


def pretrain(epochs: int = EPOCHS, seed: int = 0, verbose: bool = True) -> nn.Module:
    """The trained ViT."""
    pictures = images()
    with fenced_rng(seed, "pretrain"):
        vit = build(CATALOGUE["digits-vit"], SIDE)
        width: int = vit.embed_dim  # type: ignore[assignment]
        projector = nn.Sequential(nn.Linear(width, 256), nn.GELU(), nn.Linear(256, 64))
        decoder = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, SIDE * SIDE))
    parts = nn.ModuleList([vit, projector, decoder])
    optimizer = torch.optim.AdamW(parts.parameters(), lr=RATE, weight_decay=0.05)
    random = generator(seed, "pretrain", "views")
    steps = len(pictures) // BATCH
    total = epochs * steps
    for epoch in range(epochs):
        order = torch.randperm(len(pictures), generator=random)
        mean_loss = 0.0
        for step in range(steps):
            done = epoch * steps + step
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1, (done + 1) / 100) * (1 + math.cos(math.pi * done / total)) / 2
            batch = pictures[order[step * BATCH : (step + 1) * BATCH]]
            views = torch.cat([distort(batch, random), distort(batch, random)])
            cls = vit.forward_features(as_input(views))[:, 0]  # type: ignore[operator]
            drawing = F.mse_loss(decoder(cls), centre(batch).flatten(1).repeat(2, 1))
            loss = DRAWING_WEIGHT * drawing + info_nce(projector(cls), TEMPERATURE)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean_loss += loss.item() / steps
        if verbose:
            print(f"epoch {epoch + 1}/{epochs}  loss {mean_loss:.4f}", flush=True)
    return vit.eval()


def main(arguments: list[str]) -> None:
    """Command line."""
    from safetensors.torch import save_file

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    vit = pretrain(options.epochs)
    state = {name: tensor.contiguous() for name, tensor in vit.state_dict().items()}
    facts = {"script": "gcdbench.backbone.pretrain_digits", "epochs": str(options.epochs), "seed": "0"}
    save_file(state, str(options.out), metadata=facts)
    # Files are compared by their tensors: the header of a safetensors file has no fixed order.
    _, shipped = load_backbone(BackboneConfig("digits-vit"), SIDE)
    same = "the same as" if weights_hash(vit) == shipped.weights_hash else "other than"
    print(f"{options.out}: weights hash {weights_hash(vit)}, {same} the shipped weights ({shipped.weights_hash})")


if __name__ == "__main__":
    main(sys.argv[1:])
