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
from gcdbench.prepare.pool import ImagePool, PoolOptions, PoolRows
from gcdbench.prepare.request import ResolvedRequest
from gcdbench.prepare.run_context import RunContext, build_method, prepare_run
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.records.record import Record
from gcdbench.system.plugin_call import plugin_call
from gcdbench.training import checkpoint


@dataclass(frozen=True)
class Reopened:
    """A run whose data and weights are here."""

    ctx: RunContext
    record: Record

    @property
    def part(self) -> str:
        """Part of the dataset that was scored."""
        return "train" if self.ctx.config.eval.rows == "unlabelled" else "test"

    @property
    def index(self) -> Index:
        """Rows of that part."""
        index = self.ctx.data.index if self.part == "train" else self.ctx.data.test
        assert index is not None
        return index

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the true classes in the order of the targets."""
        split = self.ctx.data.split
        return tuple(self.index.class_names[c] for c in (*split.base, *split.novel))

    def image(self, row: int) -> Image.Image:
        """The image of a scored row."""
        return self.ctx.data.dataset.image(self.part, row)

    def backbone_features(self, rows: IntArray) -> np.ndarray:
        """CLS of the backbone as it was before training."""
        tail = self.ctx.backbone.tail(norm=True).to(self.ctx.compute.device).eval()
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
            trained = self.record.parameters["trained"]
            raise GcdbenchError("its checkpoint is gone" if trained else "it trains nothing")
        method = build_method(self.ctx)
        try:
            method.load_state_dict(saved["lane"]["method"])
        except (KeyError, TypeError, RuntimeError) as fault:
            raise GcdbenchError(f"its checkpoint does not fit the method ({type(fault).__name__})") from fault
        return method.eval()

    def _features(self, rows: IntArray, embed: object) -> np.ndarray:
        numbers = np.argsort(self.ctx.data.order[self.part])[rows]
        how = PoolOptions(self.ctx.config.eval.batch_size, sparse=True)
        pool = ImagePool(PoolRows.unlabelled(self.part, numbers), self.ctx.source, how)
        return pool.features(embed).float().cpu().numpy()  # type: ignore[arg-type]


def reopen(record: Record, shared: SharedResources) -> Reopened:
    """Build the run's context again; a GcdbenchError says what is missing or has changed."""
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
    asked = ResolvedRequest(plugin, method_class, dataset_class, (resolved,))
    ctx = prepare_run(asked, resolved, shared)
    own = begun_with(Path(record.dir), ctx.backbone_info)
    if own is not None:
        ctx = prepare_run(asked, resolved, shared, own)
    if ctx.run_id != record.run_id:
        raise GcdbenchError(
            f"the data, the weights or the plugin are not those of the run any more (they would give run {ctx.run_id})"
        )
    return Reopened(ctx, record)
