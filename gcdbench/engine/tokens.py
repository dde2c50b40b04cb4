"""From rows to trunk tokens: the one place where images meet the trunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from gcdbench.backbone.vit import Trunk
from gcdbench.config import ViewConfig
from gcdbench.data.images import ResizedImages
from gcdbench.data.stream import default_workers, stream
from gcdbench.data.views import Normalise, ViewPlan, random_plan
from gcdbench.engine.device import Compute
from gcdbench.errors import TrainingError


class TokenSource:
    """Streams trunk tokens of planned views; shared by training, pools and every method that looks at them."""

    def __init__(
        self,
        trunk: Trunk,
        images: Mapping[str, ResizedImages],
        views: ViewConfig,
        compute: Compute,
        micro_batch: int,
        workers: int | None,
    ) -> None:
        self.trunk = trunk
        self.images = images
        self.views = views
        self.compute = compute
        self.micro_batch = micro_batch
        self.workers = {p: default_workers(i) if workers is None else workers for p, i in images.items()}
        self.normalise = Normalise(views, compute.device)

    def stream(self, part: str, plans: list[ViewPlan]) -> Iterator[tuple[ViewPlan, Tensor]]:
        """Each plan with its tokens, in order."""
        pixels = stream(self.images[part], plans, self.views.crop, self.workers[part], self.compute.pins)
        for plan, views in pixels:
            # Computed before the yield: a suspended generator would leave autocast on for whoever uses the tokens.
            tokens = self._pass(self.normalise(views))
            yield plan, tokens

    def _pass(self, images: Tensor) -> Tensor:
        """A trunk pass; out of memory halves the micro-batch, which changes nothing but memory."""
        while True:
            try:
                with self.compute.autocast():
                    return self.trunk(images, self.micro_batch)
            except torch.OutOfMemoryError as fault:
                if self.micro_batch == 1:
                    raise TrainingError(
                        "Out of memory in the trunk even for a single image. Use --precision bf16, "
                        "a smaller views.crop or a smaller backbone."
                    ) from fault
                self.micro_batch = max(1, min(self.micro_batch, len(images)) // 2)

    def rows(self, part: str, rows: Tensor, batch: int, random: torch.Generator | None = None) -> Iterator[Tensor]:
        """Tokens of one view of each row: the centre, or a random one if a generator is given."""
        chunks = list(rows.split(batch))
        plans = [ViewPlan(c) if random is None else random_plan(c, self.views, random, views=1) for c in chunks]
        for _, tokens in self.stream(part, plans):
            yield tokens
