"""The last transformer block, computed only for the tokens that are read.

Keys and values are needed for every token; queries, projection and MLP only for the tokens whose output
are read. The numbers are those of the whole block.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def reads_exactly(block: nn.Module) -> bool:
    """Whether ``read_block`` knows this kind of block (timm's plain pre-norm ViT block)."""
    from timm.layers.attention import Attention
    from timm.models.vision_transformer import Block

    attention = getattr(block, "attn", None)
    return (
        type(block) is Block
        and type(attention) is Attention
        and getattr(attention, "gate", None) is None
        and attention.attn_drop.p == 0
    )


def pick(tokens: Tensor, extra: int) -> Tensor:
    """The tokens that are read: CLS and the ``extra`` last ones (slices, so no index travels to a GPU)."""
    if extra == 0:
        return tokens[:, :1]
    return torch.cat([tokens[:, :1], tokens[:, -extra:]], dim=1)


def read_block(block: Any, tokens: Tensor, extra: int) -> Tensor:
    """``pick(block(tokens), extra)`` without computing the other outputs."""
    x = pick(tokens, extra)
    x = x + block.drop_path1(block.ls1(_read_attention(block.attn, block.norm1(tokens), extra)))
    found: Tensor = x + block.drop_path2(block.ls2(block.mlp(block.norm2(x))))
    return found


def _read_attention(attention: Any, x: Tensor, extra: int) -> Tensor:
    qkv: nn.Linear = attention.qkv
    heads: int = attention.num_heads
    inner = qkv.out_features // 3
    bias_q = bias_kv = None
    if qkv.bias is not None:
        bias_q, bias_kv = qkv.bias[:inner], qkv.bias[inner:]
    rows, count = len(x), 1 + extra
    q = F.linear(pick(x, extra), qkv.weight[:inner], bias_q)
    q = q.reshape(rows, count, heads, -1).transpose(1, 2)
    kv = F.linear(x, qkv.weight[inner:], bias_kv)
    k, v = kv.reshape(rows, x.shape[1], 2, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    q, k = attention.q_norm(q), attention.k_norm(k)
    out = F.scaled_dot_product_attention(q, k, v, scale=attention.scale)
    out = out.transpose(1, 2).reshape(rows, count, inner)
    out = attention.norm(out) if hasattr(attention, "norm") else out
    found: Tensor = attention.proj_drop(attention.proj(out))
    return found
