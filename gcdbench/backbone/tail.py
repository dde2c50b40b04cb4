"""The trained end of a backbone: transformer blocks that read CLS and any extra tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gcdbench.backbone.block import pick, read_block, reads_exactly
from gcdbench.backbone.folded import can_fold, read_folded
from gcdbench.errors import PluginError, UsageError
from gcdbench.system.parallel.gather import sharing, whole_batch


class Tail(nn.Module):
    """Trainable blocks. Reads CLS and any extra tokens; the final norm is frozen."""

    def __init__(
        self,
        blocks: nn.ModuleList,
        norm: nn.Module,
        *,
        use_norm: bool,
        extra_tokens: int,
        stem: nn.Module | None = None,
        folded: bool = False,
    ) -> None:
        """The modules become the tail's own: whoever shares them hands over copies."""
        super().__init__()
        self.stem = stem
        self.blocks = blocks
        # The final norm belongs to the backbone even where a method skips it, so it is kept and counted.
        self.norm = norm
        self.norm.requires_grad_(False)
        self.use_norm = use_norm
        self.extra_tokens = extra_tokens
        self.blocks.requires_grad_(True)
        if self.stem is not None:
            self.stem.requires_grad_(True)
        self.exact_read = reads_exactly(self.blocks[-1])
        if folded and not can_fold(self.blocks[-1]):
            raise UsageError(
                "backbone.tail_read is 'folded', but the last block of this backbone is no plain pre-norm block with "
                "unnormalised keys: use backbone.tail_read=plain."
            )
        self.folded = folded

    def forward(self, tokens: Tensor, extra: Tensor | None = None, *, on_cls: bool = False) -> Tensor:
        """(rows, tokens, dim) to (rows, 1 + extra, dim): CLS first, then the extra tokens.

        ``extra`` is (extra, dim), shared by all rows and appended before the last block; with ``on_cls`` it is added
        to each row's CLS token there, so that extra tokens start from what CLS knows. In a training step on several
        ranks the tokens are those of this rank's rows, and what is returned is that of the whole batch.
        """
        if sharing():
            _refuse_chance(self)
        x = tokens if self.stem is None else self.stem(tokens)
        for block in list(self.blocks)[:-1]:
            x = block(x)
        count = 0 if extra is None else len(extra)
        if count != self.extra_tokens:
            raise ValueError(f"the tail was made for {self.extra_tokens} extra tokens and got {count}")
        own: Tensor | None = None
        if extra is not None:
            own = extra.to(x.dtype).expand(len(x), -1, -1)
            own = x[:, :1] + own if on_cls else own
        x = self._last_block(x, own, count)
        return whole_batch(self.norm(x) if self.use_norm else x)

    def _last_block(self, x: Tensor, own: Tensor | None, count: int) -> Tensor:
        """CLS and the extra tokens after the last block."""
        last = self.blocks[-1]
        if self.folded:
            return read_folded(last, x, own)
        x = x if own is None else torch.cat([x, own], dim=1)
        return read_block(last, x, count) if self.exact_read else pick(last(x), count)


def _refuse_chance(tail: nn.Module) -> None:
    """What a rank drops from its own rows is not what one process would drop."""
    for module in tail.modules():
        if module.training and max(getattr(module, "p", 0) or 0, getattr(module, "drop_prob", 0) or 0) > 0:
            raise PluginError(
                f"The tail drops at random ({type(module).__name__}), which cannot be the same on several processes as "
                "on one: train in one process, or without."
            )
