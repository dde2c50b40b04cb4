"""Small pictures inside the page, as data addresses."""

from __future__ import annotations

import base64
import io

from PIL import Image

SIDE = 64
PER_CLUSTER = 12
IN_ALL = 1500
"""Pictures in one page: some megabytes."""


def per_cluster(clusters: int) -> int:
    """Pictures of each cluster, so that the page stays small however many clusters there are."""
    return max(1, min(PER_CLUSTER, IN_ALL // max(clusters, 1)))


def data_uri(image: Image.Image) -> str:
    """A picture of at most SIDE pixels: JPEG, or PNG where the image is tiny and every pixel counts."""
    small = image.convert("RGB")
    stream = io.BytesIO()
    if max(small.size) <= SIDE // 2:
        small.save(stream, "PNG")
        kind = "png"
    else:
        small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        small.save(stream, "JPEG", quality=82)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"
