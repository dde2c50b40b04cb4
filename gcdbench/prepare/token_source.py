"""From rows to trunk tokens: the one place where images meet the trunk.

Rows are known by the numbers that methods see (`DataSide.order`), here and in everything that asks for tokens: the
order of the files, which may give classes away, ends where images are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcdbench.backbone.load import BackboneInfo
from gcdbench.backbone.split import FrozenTrunk, SplitBackbone
from gcdbench.config.sections import ViewConfig
from gcdbench.data.images import Images, NumberedImages
from gcdbench.data.prefetch import ahead, default_workers
from gcdbench.data.store.token_store import TokenStore
from gcdbench.data.stream import stream
from gcdbench.data.views import Normalise, ViewPlan, random_plan, stored_plan
from gcdbench.errors import TrainingError
from gcdbench.system.device import Compute
from gcdbench.system.plugin_call import out_of_memory

CHUNK = 128
"""Rows of a trunk pass over evaluation views. A pass always takes the same rows (0-127, 128-255, ...), whoever wants
some of them, so that tokens do not depend on who asks: from a store, from memory or computed, they are equal bits."""
KEEP_BYTES = 256 << 20
"""Evaluation tokens of a part are kept in memory if all of them are smaller than this."""

Rows = NDArray[np.int64]


def _compiled(trunk: FrozenTrunk) -> Callable[[Tensor], Tensor]:
    """The compiled trunk; what the compiler cannot do must be reported to the user."""
    fast = torch.compile(trunk.raw)

    def raw(images: Tensor) -> Tensor:
        try:
            return fast(images)
        except Exception as fault:  # compilers fail in many ways
            if out_of_memory(fault):
                raise
            first = (str(fault).strip().splitlines() or [""])[0]
            raise TrainingError(
                f"The trunk cannot be compiled here ({type(fault).__name__}: {first}). Run without --compile; "
                "torch.compile needs a C++ compiler on a CPU and Triton on a GPU."
            ) from fault

    return raw


@dataclass(frozen=True)
class PassOptions:
    """How trunk passes are made; none of it changes tokens beyond rounding."""

    micro_batch: int = 256
    """Images at a time."""
    workers: int | None = None
    """Threads that read images; None takes as many as are useful here."""
    compiled: bool = False


class TokenSource:
    """Streams trunk tokens of planned views; shared by training, pools and every lane that looks at them."""

    def __init__(
        self,
        trunk: FrozenTrunk,
        images: Mapping[str, Images],
        views: ViewConfig,
        compute: Compute,
        options: PassOptions,
        order: Mapping[str, Rows] | None = None,
    ) -> None:
        """``order`` has per part the row of the dataset behind each number; None: rows are numbered as they are."""
        self.trunk = trunk
        self.images = dict(images)
        self._order = order
        self.views = views
        self.compute: Compute = compute
        self.micro_batch = options.micro_batch
        self.workers = default_workers() if options.workers is None else options.workers
        self.normalise = Normalise(views, compute.device, compute.dtype)
        self.stored: dict[str, TokenStore] = {}
        """Stores of evaluation tokens by part."""
        self.stored_views: TokenStore | None = None
        """Store of training views: view v of row r at r x views + v."""
        self.views_per_row = 0
        self._raw = _compiled(trunk) if options.compiled else trunk.raw
        self._kept: dict[tuple[str, int], Tensor] = {}
        self._shape: tuple[int, ...] | None = None

    def use_packed(self, part: str, images: Images) -> None:
        """From now on images of a part come from a store."""
        self.images[part] = images

    def stream(self, part: str, plans: Iterable[ViewPlan]) -> Iterator[tuple[ViewPlan, Tensor]]:
        """Each plan with its tokens, in order."""
        images = self.images[part]
        if self._order is not None:
            images = NumberedImages(images, self._order[part])
        pixels = stream(images, plans, self.views.crop, self.workers, self.compute.device)
        for plan, crops in pixels:
            if plan.drawn is not None:
                from gcdbench.data.view_kinds import with_kinds  # needs torchvision, which takes a second

                crops = with_kinds(crops, self.views.kinds, plan.drawn)
            # Computed before the yield: a suspended generator would leave autocast on for whoever uses the tokens.
            tokens = self._pass(crops)
            yield plan, tokens

    def training(self, plans: Iterable[ViewPlan]) -> Iterator[tuple[ViewPlan, Tensor]]:
        """The same for training rows; plans of stored views are read instead of computed."""
        store, count = self.stored_views, self.views_per_row
        queue = iter(plans)
        first = next(queue, None)
        if first is None:
            return
        plans = itertools.chain([first], queue)
        if store is None or first.stored is None:
            yield from self.stream("train", plans)
            return

        def read(plan: ViewPlan) -> Tensor:
            assert plan.stored is not None
            return self._pinned(store.read((plan.rows * count + plan.stored).flatten().numpy()))

        for plan, tokens in ahead(read, plans, self.workers):
            yield plan, self._arrived(tokens)

    def _pass(self, crops: Tensor) -> Tensor:
        """A trunk pass; out of memory halves the micro-batch, which changes nothing but memory."""
        while True:
            try:
                with self.compute.autocast():
                    return self._micro_batches(crops)
            except Exception as fault:
                if not out_of_memory(fault):
                    raise
                if self.micro_batch == 1:
                    raise TrainingError(
                        "Out of memory in the trunk even for a single image. Use --precision bf16, "
                        "a smaller views.crop or a smaller backbone."
                    ) from fault
                self.micro_batch = max(1, min(self.micro_batch, len(crops)) // 2)

    def _micro_batches(self, crops: Tensor) -> Tensor:
        """The trunk runs in inference mode; its tokens are copied out of it, because tails train on them."""
        out: Tensor | None = None
        done = 0
        for part in crops.split(self.micro_batch):
            with torch.inference_mode():
                tokens = self._raw(self.normalise(part))
            if out is None:
                out = torch.empty((len(crops), *tokens.shape[1:]), dtype=tokens.dtype, device=tokens.device)
            with torch.no_grad():
                out[done : done + len(part)].copy_(tokens)
            done += len(part)
        assert out is not None
        return out

    def token_shape(self) -> tuple[int, ...]:
        """(tokens, dim) of one view."""
        if self._shape is None:
            side = self.views.crop
            black = torch.zeros((1, side, side, 3), dtype=torch.uint8, device=self.compute.device)
            self._shape = tuple(self._pass(black).shape[1:])
        return self._shape

    def random(
        self, part: str, rows: Rows, batch: int, random: torch.Generator, turn: int, wanted: range
    ) -> Iterator[Tensor]:
        """Tokens of one random view of each row, of the batches with the numbers ``wanted``; another in each ``turn``.

        Views are drawn for all of them, so that they do not depend on who computes which. Where training reads stored
        views, these are stored ones too: turns go through them in an order drawn for each row.
        """
        chunks = torch.from_numpy(rows).split(batch)
        if part == "train" and self.stored_views is not None:
            count, place = self.views_per_row, turn % self.views_per_row
            same = torch.Generator().manual_seed(random.initial_seed())  # the same orders in each turn
            orders = [stored_plan(c, count, count, same) for c in chunks]
            plans = [ViewPlan(p.rows, stored=p.stored[place : place + 1]) for p in orders if p.stored is not None]
        else:
            plans = [random_plan(c, self.views, random, views=1) for c in chunks]
        chosen = plans[wanted.start : wanted.stop]
        for _, tokens in self.training(chosen) if part == "train" else self.stream(part, chosen):
            yield tokens

    def centre(self, part: str, rows: Rows, batch: int, sparse: bool = False) -> Iterator[Tensor]:
        """Tokens of the centre view of increasing rows, ``batch`` at a time.

        ``sparse`` computes the wanted rows alone, for a few rows of a large part.
        """
        if part in self.stored:
            chunks = np.split(rows, range(batch, len(rows), batch))
            for _, tokens in ahead(lambda c: self._pinned(self.stored[part].read(c)), chunks, self.workers):
                yield self._arrived(tokens)
            return
        if sparse:
            plans = [ViewPlan(c) for c in torch.from_numpy(rows).split(batch)]
            yield from (tokens for _, tokens in self.stream(part, plans))
            return
        waiting: list[Tensor] = []
        count = 0
        for tokens in self._wanted(part, rows):
            waiting.append(tokens)
            count += len(tokens)
            while count >= batch:
                joined = torch.cat(waiting) if len(waiting) > 1 else waiting[0]
                yield joined[:batch]
                waiting, count = [joined[batch:]], count - batch
        if count:
            yield torch.cat(waiting)

    def chunks(self, part: str, numbers: Iterable[int]) -> Iterator[tuple[int, Tensor]]:
        """Tokens of whole chunks of a part's evaluation views."""
        total = len(self.images[part])
        plans = (ViewPlan(torch.arange(n * CHUNK, min((n + 1) * CHUNK, total))) for n in numbers)
        for plan, tokens in self.stream(part, plans):
            yield int(plan.rows[0]) // CHUNK, tokens

    def _wanted(self, part: str, rows: Rows) -> Iterator[Tensor]:
        """Of each chunk, the rows that are wanted."""
        numbers, starts = np.unique(rows // CHUNK, return_index=True)
        wanted = dict(zip(numbers.tolist(), np.split(rows, starts[1:]), strict=True))
        for number, tokens in self._computed(part, list(wanted)):
            own = torch.from_numpy(wanted[number] - number * CHUNK)
            # A copy in any case: what is kept must not change if a caller writes into what it was given.
            yield tokens.clone() if len(own) == len(tokens) else tokens[own.to(tokens.device)]

    def _computed(self, part: str, numbers: list[int]) -> Iterator[tuple[int, Tensor]]:
        total = len(self.images[part])
        bytes_per_row = int(np.prod(self.token_shape())) * 4
        if bytes_per_row * total > KEEP_BYTES:
            yield from self.chunks(part, numbers)
            return
        missing = [number for number in numbers if (part, number) not in self._kept]
        if missing:
            self._kept |= {(part, number): tokens for number, tokens in self.chunks(part, missing)}
        yield from ((n, self._kept[part, n]) for n in numbers)

    def release(self) -> None:
        """Forget the tokens that were kept in memory."""
        self._kept.clear()

    def _pinned(self, tokens: Tensor) -> Tensor:
        return tokens.pin_memory() if self.compute.pins else tokens

    def _arrived(self, tokens: Tensor) -> Tensor:
        """On the device, in the type the trunk gives (its residual stream is float32 even under autocast)."""
        return tokens.to(self.compute.device, non_blocking=self.compute.pins).to(self.compute.dtype)


@dataclass(frozen=True)
class ReadyBackbone:
    """A backbone on its device, what the record says of it, and where its tokens come from."""

    backbone: SplitBackbone
    info: BackboneInfo
    source: TokenSource
