"""The cost of a sweep as tables."""

from __future__ import annotations

from gcdbench.analysis.table import Sheet, cells
from gcdbench.experiments.cost import WAYS, SweepCost

TITLES = {
    "alone": "alone",
    "lanes": "in lanes",
    "eval_store": "+ token store",
    "train_views": "+ stored views",
}


def cost_sheets(cost: SweepCost) -> list[Sheet]:
    """GPU hours by dataset and backbone; disk and network; operations of a step."""
    return [_hours(cost), _bytes(cost), _steps(cost)]


def _hours(cost: SweepCost) -> Sheet:
    rows = [
        (
            *(place.dataset, place.backbone, f"{place.rows:,}", f"{place.runs:,}", _millions(place.images)),
            *(_number(cost.hours(place.operations[way])) for way in WAYS),
        )
        for place in cost.places
    ]
    runs, images = (sum(getattr(p, name) for p in cost.places) for name in ("runs", "images"))
    total = ("all", "", "", f"{runs:,}", _millions(images), *(_number(cost.hours(cost.total(w))) for w in WAYS))
    columns = ("Dataset", "Backbone", "Rows", "Runs", "Images", *(f"Hours {TITLES[way]}" for way in WAYS))
    assumed = cost.assumed
    caption = [
        f"{_operations(cost.total('alone'))} alone, {_operations(cost.total('lanes'))} in lanes. GPU hours at "
        f"{assumed.tflops:g} TFLOP/s sustained. Images: seen by training steps. Clustering is not counted.",
        "Lanes: runs with the same batches share trunk passes. Token store: evaluation views are computed once. "
        f"Stored views: training on {assumed.train_views} stored views of each image, which is not exact.",
    ]
    if cost.not_installed:
        caption.append(f"Not installed, not counted: {', '.join(cost.not_installed)}.")
    caption += [f"Not counted: {reason}" for reason in cost.uncounted]
    body = tuple(cells(*row) for row in (*rows, total))
    return Sheet(cost.title, columns, body, rules=(len(rows),), caption=tuple(caption))


def _bytes(cost: SweepCost) -> Sheet:
    columns = (
        *("Dataset", "Backbone", "Image store", "Token store", "Stored views"),
        *("Read per epoch: crops", "tokens", "To keep a GPU busy"),
    )
    rows = [
        (
            *(place.dataset, place.backbone),
            *(_gigabytes(n) for n in (place.image_store, place.eval_tokens, place.train_tokens)),
            *(_gigabytes(n) for n in (place.read_images, place.read_tokens)),
            f"{place.busy_images / 1e6:,.0f} MB/s",
        )
        for place in cost.places
    ]
    # Images are packed once for all backbones.
    sums = [cost.stored_images(), *(sum(getattr(p, n) for p in cost.places) for n in ("eval_tokens", "train_tokens"))]
    rows.append(("all", "", *(_gigabytes(n) for n in sums), "", "", ""))
    caption = (
        f"Images at a shape of {cost.assumed.image_shape:.2f}; tokens with {cost.assumed.token_bytes} bytes a number.",
        "Busy: crops that a GPU reads a second while it trains all lanes of a job at the speed above.",
    )
    return Sheet("Disk and network", columns, tuple(cells(*row) for row in rows), (len(rows) - 1,), (), caption)


def _steps(cost: SweepCost) -> Sheet:
    """The most and the least expensive method of each backbone stand for the others: they differ by little."""
    by_backbone: dict[str, list[tuple[float, str]]] = {}
    for name, operations in cost.per_image.items():
        backbone, _, what = name.partition(": ")
        by_backbone.setdefault(backbone, []).append((operations, what))
    rows = []
    for backbone, found in by_backbone.items():
        for operations, what in dict.fromkeys((min(found), max(found))):
            rows.append(
                cells(backbone, what, f"{operations / 1e9:.1f}" if operations >= 5e7 else f"{operations / 1e9:.4f}")
            )
    columns = ("Backbone", "Method, dataset", "GFLOP per image and step")
    return Sheet("Least and most expensive training step", columns, tuple(rows))


def _number(hours: float) -> str:
    if hours < 0.01:
        return "under 0.01" if hours else "0"
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:,.1f}" if hours >= 1 else f"{hours:.2f}"


def _operations(count: float) -> str:
    for size, unit in ((1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP")):
        if count >= 10 * size:
            return f"{count / size:,.0f} {unit}"
    return f"{count / 1e9:,.0f} GFLOP"


def _millions(images: int) -> str:
    return f"{images / 1e6:,.1f} M"


def _gigabytes(size: float) -> str:
    if size < 5e7:
        return f"{size / 1e6:,.1f} MB"
    return f"{size / 1e9:,.1f} GB" if size < 1e12 else f"{size / 1e12:,.2f} TB"
