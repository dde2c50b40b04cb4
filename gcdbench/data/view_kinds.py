"""Kinds of training views beyond crop and mirror. Every number they need is drawn beforehand, with the plan of a batch,
so that a view does not depend on who makes it, or where."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gcdbench.system.torchvision_import import allow_torchvision

allow_torchvision()
import torchvision.transforms.v2.functional as tv  # noqa: E402
from torchvision.transforms import InterpolationMode  # noqa: E402

BILINEAR = InterpolationMode.BILINEAR

Numbers = Sequence[float]
View = Callable[[Tensor, Numbers], Tensor]


def within(low: float, high: float, u: float) -> float:
    """The number at this share of the way."""
    return low + (high - low) * u


def zoomed(image: Tensor, u: Numbers) -> Tensor:
    """A piece of 40 to 100 % of the area, at most a third wider than high or the reverse, enlarged to the whole."""
    side = image.shape[-1]
    area, aspect = within(0.4, 1, u[0]), math.exp(within(math.log(3 / 4), math.log(4 / 3), u[1]))
    height = min(side, max(1, round(side * math.sqrt(area / aspect))))
    width = min(side, max(1, round(side * math.sqrt(area * aspect))))
    top, left = int(u[2] * (side - height + 1)), int(u[3] * (side - width + 1))
    crop: Tensor = tv.resized_crop(image, top, left, height, width, [side, side], BILINEAR, antialias=True)
    return crop


def jittered(image: Tensor, u: Numbers) -> Tensor:
    """Brightness, contrast and saturation by up to 40 %, hue by up to a tenth of the circle."""
    image = tv.adjust_brightness(image, within(0.6, 1.4, u[0]))
    image = tv.adjust_contrast(image, within(0.6, 1.4, u[1]))
    image = tv.adjust_saturation(image, within(0.8, 1.2, u[2]))
    coloured: Tensor = tv.adjust_hue(image, within(-0.1, 0.1, u[3]))
    return coloured


def blurred(image: Tensor, u: float) -> Tensor:
    """By a Gaussian of 0.1 to 2 pixels at a side of 224."""
    sigma = within(0.1, 2.0, u) * image.shape[-1] / 224
    width = 2 * max(1, math.ceil(3 * sigma)) + 1
    width = min(width, 2 * ((image.shape[-1] - 1) // 2) + 1)
    blurry: Tensor = tv.gaussian_blur(image, [width, width], [sigma, sigma])
    return blurry


def strong(image: Tensor, u: Numbers) -> Tensor:
    """What contrastive learning calls strong: zoom; colour jitter (80 %), grey (20 %), blur (50 %), solarise (10 %)."""
    image = zoomed(image, u[:4])
    if u[4] < 0.8:
        image = jittered(image, u[5:9])
    if u[9] < 0.2:
        image = tv.rgb_to_grayscale(image, num_output_channels=3)
    if u[10] < 0.5:
        image = blurred(image, u[11])
    return tv.solarize(image, 128) if u[12] < 0.1 else image


def affine(image: Tensor, u: Numbers) -> Tensor:
    """Rotated by up to 45 degrees, shifted by a tenth, sheared by 15 degrees; 0.7 to 0.875 times as large."""
    side = image.shape[-1]
    shift = [round(within(-0.1, 0.1, u[1]) * side), round(within(-0.1, 0.1, u[2]) * side)]
    angle, shear = within(-45, 45, u[0]), within(-15, 15, u[3])
    turned: Tensor = tv.affine(image, angle, shift, within(0.7, 0.875, u[4]), [shear, 0.0], BILINEAR)
    return turned


def _moved(image: Tensor, shear: tuple[float, float] = (0, 0), shift: tuple[float, float] = (0, 0)) -> Tensor:
    pixels = [round(part * image.shape[-1]) for part in shift]
    angles = [math.degrees(math.atan(part)) for part in shear]
    moved: Tensor = tv.affine(image, 0.0, pixels, 1.0, angles, BILINEAR)
    return moved


OPERATIONS: tuple[View, ...] = (
    lambda image, s: image,
    lambda image, s: _moved(image, shear=(0.3 * s[0], 0)),
    lambda image, s: _moved(image, shear=(0, 0.3 * s[0])),
    lambda image, s: _moved(image, shift=(0.45 * s[0], 0)),
    lambda image, s: _moved(image, shift=(0, 0.45 * s[0])),
    lambda image, s: tv.rotate(image, 30 * s[0], BILINEAR),
    lambda image, s: tv.adjust_brightness(image, 1 + 0.9 * s[0]),
    lambda image, s: tv.adjust_saturation(image, 1 + 0.9 * s[0]),
    lambda image, s: tv.adjust_contrast(image, 1 + 0.9 * s[0]),
    lambda image, s: tv.adjust_sharpness(image, 1 + 0.9 * s[0]),
    lambda image, s: tv.posterize(image, 8 - round(4 * abs(s[0]))),
    lambda image, s: tv.solarize(image, round(255 * (1 - abs(s[0])))),
    lambda image, s: tv.autocontrast(image),
    lambda image, s: tv.equalize(image),
)
"""Those of RandAugment, at a strength from -1 to 1."""
STRENGTH = 1 / 3
"""Ten of RandAugment's thirty."""


def randaugment(image: Tensor, u: Numbers) -> Tensor:
    """Two operations of RandAugment one after the other, drawn from all of them, either way round."""
    for chosen, way in (u[0:2], u[2:4]):
        strength = STRENGTH if way < 0.5 else -STRENGTH
        image = OPERATIONS[int(chosen * len(OPERATIONS))](image, (strength,))
    return image


KINDS: dict[str, View] = {"strong": strong, "affine": affine, "randaugment": randaugment}
"""By their names in `views.kinds`; `weak` is the crop as it is."""


def with_kinds(crops: Tensor, kinds: Sequence[str], drawn: Tensor) -> Tensor:
    """(views x rows, side, side, 3) uint8 crops, view-major, each view as its kind says. ``drawn`` is
    (views, rows, NUMBERS) and on the host."""
    rows = drawn.shape[1]
    out = []
    for kind, part, numbers in zip(kinds, crops.split(rows), drawn.tolist(), strict=False):
        if kind in KINDS:
            images = part.permute(0, 3, 1, 2)
            made = [KINDS[kind](image, each) for image, each in zip(images, numbers, strict=True)]
            part = torch.stack(made).permute(0, 2, 3, 1)
        out.append(part)
    return torch.cat(out)
