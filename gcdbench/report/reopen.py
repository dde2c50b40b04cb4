"""Open a finished run again: its data for pictures, its weights for features."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from gcdbench import registry
from gcdbench.config.resolve import Layer, flat_config, resolve
from gcdbench.contracts import Index, IntArray, Method
from gcdbench.errors import GcdbenchError
from gcdbench.prepare.pca import begun_with
from gcdbench.prepare.plan import Plan
from gcdbench.prepare.pool import ImagePool
from gcdbench.prepare.run_context import Workspace, prepare
from gcdbench.prepare.shared_resources import Cache
from gcdbench.records.record import Record
from gcdbench.system.device import Compute, choose_device
from gcdbench.system.plugin_call import plugin_call
from gcdbench.training import checkpoint


@dataclass(frozen=True)
class Reopened:
    """A run whose data and weights are here."""

    space: Workspace
    record: Record

    @property
    def part(self) -> str:
        """Part of the dataset that was scored."""
        return "train" if self.space.config.eval.rows == "unlabelled" else "test"

    @property
    def index(self) -> Index:
        """Rows of that part."""
        index = self.space.data.index if self.part == "train" else self.space.data.test
        assert index is not None
        return index

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the true classes in the order of the targets."""
        split = self.space.data.split
        return tuple(self.index.class_names[c] for c in (*split.base, *split.novel))

    def image(self, row: int) -> Image.Image:
        """The image of a scored row."""
        return self.space.data.dataset.image(self.part, row)

    def backbone_features(self, rows: IntArray) -> np.ndarray:
        """CLS of the backbone as it was before training."""
        tail = self.space.backbone.tail(norm=True).to(self.space.compute.device).eval()
        return self._features(rows, lambda tokens: tail(tokens)[:, 0])

    def method_features(self, rows: IntArray) -> np.ndarray | None:
        """What the trained method makes of the rows; None if it shows no features."""
        method = self._method()

        def embed(tokens: Tensor) -> Tensor:
            found = method.features(tokens)
            return tokens.new_zeros(len(tokens)) if found is None else found.float()

        with plugin_call(self.record.method, "features"):
            features = self._features(rows, embed)
        return features if features.ndim == 2 else None

    def _method(self) -> Method:
        saved = checkpoint.load(Path(self.record.dir))
        if saved is None:
            raise GcdbenchError("its checkpoint is gone")
        method = self.space.method()
        try:
            method.load_state_dict(saved["lane"]["method"])
        except (KeyError, TypeError, RuntimeError) as fault:
            raise GcdbenchError(f"its checkpoint does not fit the method ({type(fault).__name__})") from fault
        return method.eval()

    def _features(self, rows: IntArray, embed: object) -> np.ndarray:
        nothing = np.zeros(len(rows), dtype=bool)
        hidden = np.full(len(rows), -1, dtype=np.int64)
        size = self.space.config.eval.batch_size
        numbers = np.argsort(self.space.data.order[self.part])[rows]
        pool = ImagePool(self.space.source, self.part, numbers, hidden, nothing, size, sparse=True)
        return pool.features(embed).float().cpu().numpy()  # type: ignore[arg-type]


def reopen(record: Record, root: Path, device: str = "auto", cache: Cache | None = None) -> Reopened:
    """Build the run's workspace again; a GcdbenchError says what is missing or has changed."""
    plugin = registry.get("method", record.method)
    method_class = plugin.load()
    dataset_class = registry.load("dataset", record.dataset)
    resolved = resolve(
        method=record.method,
        dataset=record.dataset,
        recipe=record.recipe,
        seed=record.seed,
        method_config=method_class.Config,
        layers=[Layer("record", flat_config(record.config))],
    )
    plan = Plan(plugin, method_class, dataset_class, (resolved,))
    compute = Compute(choose_device(device), resolved.config.train.precision)
    cache = cache or Cache()
    space = prepare(plan, resolved, compute, root, cache=cache)
    own = begun_with(Path(record.dir), space.backbone_info)
    if own is not None:
        space = prepare(plan, resolved, compute, root, cache=cache, own=own)
    if space.run_id != record.run_id:
        raise GcdbenchError(
            "the data, the weights or the plugin are not those of the run any more "
            f"(they would give run {space.run_id})"
        )
    return Reopened(space, record)
