"""The last block for a few read tokens, with the weights of keys and values moved to the side of the query.

A key is the key matrix times a token, so its product with a query is the token times (key matrix transposed times
query): with one or two queries a row it is much cheaper to multiply the queries than all tokens. The same holds for
values, whose matrix is applied to the weighted mean of the tokens. What all keys of a query have in common (biases)
drops out of the softmax. The numbers are those of the whole block up to rounding, at a small part of its operations.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gcdbench.backbone.block import reads_exactly


def can_fold(block: nn.Module) -> bool:
    """Whether keys are a plain linear map of normalised tokens (not normalised themselves)."""
    attention: Any = getattr(block, "attn", None)
    return (
        reads_exactly(block)
        and isinstance(block.norm1, nn.LayerNorm)
        and isinstance(attention.q_norm, nn.Identity)
        and isinstance(attention.k_norm, nn.Identity)
    )


def read_folded(block: Any, tokens: Tensor, extra: Tensor | None) -> Tensor:
    """What ``read_block`` gives for CLS and ``extra`` (rows, count, dim), which is appended to the tokens."""
    x = tokens[:, :1] if extra is None else torch.cat([tokens[:, :1], extra.to(tokens.dtype)], dim=1)
    x = x + block.drop_path1(block.ls1(_attention(block, x, tokens)))
    found: Tensor = x + block.drop_path2(block.ls2(block.mlp(block.norm2(x))))
    return found


def _attention(block: Any, read: Tensor, tokens: Tensor) -> Tensor:
    attention, norm = block.attn, block.norm1
    rows, count, dim = read.shape
    heads: int = attention.num_heads
    weight_q, weight_k, weight_v = attention.qkv.weight.chunk(3)
    bias_q, _, bias_v = (None, None, None) if attention.qkv.bias is None else attention.qkv.bias.chunk(3)
    q = F.linear(norm(read), weight_q, bias_q).view(rows * count, heads, -1).transpose(0, 1)
    asked = torch.bmm(q, weight_k.view(heads, -1, dim)) * attention.scale
    asked = asked if norm.weight is None else asked * norm.weight
    asked = asked.view(heads, rows, count, dim).transpose(0, 1).reshape(rows, heads * count, dim)
    # Two sets of keys: the trunk's tokens, through which no gradient flows, and the extra ones.
    keys = [_plain(norm, tokens)] + ([_plain(norm, read[:, 1:])] if count > 1 else [])
    scores = torch.cat([torch.bmm(asked, k.transpose(1, 2)) for k in keys], dim=2)
    shares = scores.softmax(2).to(scores.dtype).split([k.shape[1] for k in keys], dim=2)
    mean = torch.stack([torch.bmm(share, k) for share, k in zip(shares, keys, strict=True)]).sum(0)
    if norm.weight is not None:
        mean = mean * norm.weight + norm.bias
    mean = mean.view(rows, heads, count, dim).transpose(0, 1).reshape(heads, rows * count, dim)
    out = torch.bmm(mean, weight_v.view(heads, -1, dim).transpose(1, 2))
    out = out.transpose(0, 1).reshape(rows, count, -1)
    out = out if bias_v is None else out + bias_v
    out = attention.norm(out) if hasattr(attention, "norm") else out
    found: Tensor = attention.proj_drop(attention.proj(out))
    return found


def _plain(norm: nn.LayerNorm, tokens: Tensor) -> Tensor:
    """Normalised, without the norm's own weights."""
    return F.layer_norm(tokens, norm.normalized_shape, eps=norm.eps)
