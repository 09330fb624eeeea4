"""The frozen oracle: attention read through slots, in the plainest PyTorch there is.

Every faster kernel is held to `paged_attention_reference`. It is slow on purpose and must not be tuned: its worth is that
one can see it is right.

    slot_mapping   [ 112 113 114 115 |  32  33  34  35 | 240 241 ]      position p lives at slot slot_mapping[p]
    k_pool         [num_slots, n_kv, d]   --gather-->   key [1, n_kv, seq_total, d]   --gqa_attention-->   output

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4.1
(the blockwise sum is the same sum); the causal band and the float32 softmax are those of Llama.
"""

from __future__ import annotations

import math

import torch


def gqa_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """Causal attention over contiguous keys and values; each KV head serves `n_q // n_kv` query heads.

    query [1, n_q, seq_q, d], key and value [1, n_kv, seq_total, d]; the queries are the last `seq_q` of the `seq_total`
    positions. `scale` is 1/sqrt(d) unless given. Softmax in float32, cast back to the query's dtype.
    Returns [1, n_q, seq_q, d], before the output projection. Raises ValueError or TypeError before it computes anything.
    """
    _check_shapes(query, key, value)
    seq_q, d = query.shape[-2:]
    seq_total = key.shape[-2]
    past = seq_total - seq_q
    groups = query.shape[1] // key.shape[1]

    key = key.repeat_interleave(groups, dim=1)
    value = value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(-2, -1) * (1.0 / math.sqrt(d) if scale is None else scale)
    hidden = torch.ones(seq_q, seq_total, dtype=torch.bool, device=query.device).triu(diagonal=past + 1)
    scores = scores.masked_fill(hidden, float("-inf"))
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return weights @ value


def paged_attention_reference(
    query: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slot_mapping: torch.Tensor,
    scale: float | None = None,
) -> torch.Tensor:
    """The same attention, with K and V read from the pool: position p is at flat slot `slot_mapping[p]`.

    query [1, n_q, seq_q, d], already rotated; k_pool and v_pool [num_slots, n_kv, d]; slot_mapping int64 [seq_total].
    Slots that the mapping does not name are never read, and may hold NaN. Equal to `gqa_attention` bit for bit, whatever
    the order of the blocks. Returns [1, n_q, seq_q, d]. Raises ValueError or TypeError before it computes anything.
    """
    _check_pool(k_pool, v_pool, slot_mapping)
    key = k_pool[slot_mapping].transpose(0, 1).unsqueeze(0)
    value = v_pool[slot_mapping].transpose(0, 1).unsqueeze(0)
    return gqa_attention(query, key, value, scale)


def _check_shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    if query.dim() != 4 or query.shape[0] != 1:
        raise ValueError(f"query must be [1, n_q, seq_q, d], got {list(query.shape)}.")
    if key.dim() != 4 or key.shape[0] != 1 or key.shape != value.shape:
        raise ValueError(f"key and value must both be [1, n_kv, seq_total, d], got {list(key.shape)} and {list(value.shape)}.")
    n_q, seq_q, d = query.shape[1:]
    n_kv, seq_total, d_kv = key.shape[1:]
    if d != d_kv:
        raise ValueError(f"head_dim differs: query has {d}, key and value have {d_kv}.")
    if n_kv == 0 or n_q % n_kv:
        raise ValueError(f"{n_q} query heads cannot share {n_kv} KV heads: the first must be a multiple of the second.")
    if seq_q > seq_total:
        raise ValueError(f"{seq_q} queries over {seq_total} positions: every query needs its own position among them.")
    if not query.dtype == key.dtype == value.dtype or not query.is_floating_point():
        raise TypeError(f"query, key and value need one floating dtype, got {query.dtype}, {key.dtype} and {value.dtype}.")
    if not query.device == key.device == value.device:
        raise ValueError(f"query, key and value must share a device: {query.device}, {key.device} and {value.device}.")


def _check_pool(k_pool: torch.Tensor, v_pool: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    if k_pool.dim() != 3 or k_pool.shape != v_pool.shape:
        raise ValueError(
            f"k_pool and v_pool must both be [num_slots, n_kv, d], got {list(k_pool.shape)} and {list(v_pool.shape)}."
        )
    if slot_mapping.dtype != torch.int64:
        raise TypeError(f"slot_mapping must be int64 (a slot times its stride passes 2**31), got {slot_mapping.dtype}.")
    if slot_mapping.dim() != 1:
        raise ValueError(f"slot_mapping must be [seq_total], got {list(slot_mapping.shape)}.")
    if slot_mapping.device != k_pool.device:
        raise ValueError(f"slot_mapping is on {slot_mapping.device}, the pool on {k_pool.device}.")
    if slot_mapping.numel():
        low, high = int(slot_mapping.min()), int(slot_mapping.max())
        if low < 0 or high >= k_pool.shape[0]:
            raise ValueError(f"slot_mapping spans {low}..{high}, but the pool has slots 0..{k_pool.shape[0] - 1}.")
