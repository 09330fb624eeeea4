"""Paged attention in plain torch: gather through the block table, then SDPA. The live path where there is no GPU."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from kernels.metadata import AttentionMetadata


class GatherPlan:
    """Slot indices of one batch, built once a forward pass and used in every layer.

    Sequences with one new token (decode) go through SDPA together, padded to the longest; a padded place reads the
    sequence's own position 0, which is written, because -inf cannot hide a NaN. Longer chunks run one by one.
    """

    def __init__(self, metadata: AttentionMetadata) -> None:
        self.decode_rows: list[int] = []
        self.chunks: list[tuple[int, int, torch.Tensor, torch.Tensor | None]] = []
        decode: list[int] = []
        for b in range(metadata.num_sequences):
            start, length = metadata.query_start[b], metadata.query_len(b)
            if length == 1 and metadata.context_lens[b] > 0:
                decode.append(b)
                self.decode_rows.append(start)
            elif length > 0:
                slots = slots_of(metadata, b)
                self.chunks.append((start, start + length, slots, _band(length, len(slots), slots.device)))
        self.decode_slots: torch.Tensor | None = None
        self.decode_mask: torch.Tensor | None = None
        if decode:
            self.decode_slots, self.decode_mask = _padded(metadata, decode)
        self.all_decode = not self.chunks and len(decode) == metadata.query_start[-1]


def slots_of(metadata: AttentionMetadata, index: int) -> torch.Tensor:
    """[context_len] int64: the slots of the sequence's visible positions, in order."""
    context_len, size = metadata.context_lens[index], metadata.block_size
    table = metadata.block_tables[index, : -(-context_len // size)]
    offsets = torch.arange(size, device=table.device)
    return (table[:, None] * size + offsets).flatten()[:context_len]


def torch_paged_attention(
    query: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, plan: GatherPlan, scale: float
) -> torch.Tensor:
    """query [T, n_q, d]; pools [num_slots, n_kv, d]. Returns [T, n_q, d]; rows of sequences without context are zero."""
    if plan.all_decode:
        return _decode(query, k_pool, v_pool, plan, scale)
    output = torch.zeros_like(query)
    if plan.decode_slots is not None:
        output[plan.decode_rows] = _decode(query[plan.decode_rows], k_pool, v_pool, plan, scale)
    for start, stop, slots, mask in plan.chunks:
        chunk = query[start:stop].transpose(0, 1).unsqueeze(0)
        key = k_pool.index_select(0, slots).transpose(0, 1).unsqueeze(0)
        value = v_pool.index_select(0, slots).transpose(0, 1).unsqueeze(0)
        attended = sdpa(chunk, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True)
        output[start:stop] = attended.squeeze(0).transpose(0, 1)
    return output


def write_kv(
    key: torch.Tensor, value: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Stores key and value [T, n_kv, d] at slot_mapping [T] (int64) of the pools, in place. Slot -1 writes nothing."""
    kept = slot_mapping >= 0
    if not bool(kept.all()):
        key, value, slot_mapping = key[kept], value[kept], slot_mapping[kept]
    k_pool.index_copy_(0, slot_mapping, key)
    v_pool.index_copy_(0, slot_mapping, value)


def _decode(query: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, plan: GatherPlan, scale: float) -> torch.Tensor:
    """One query row a sequence: the group of query heads that shares a KV head becomes SDPA's query length."""
    assert plan.decode_slots is not None
    (batch, n_q, d), n_kv = query.shape, k_pool.shape[1]
    grouped = query.reshape(batch, n_kv, n_q // n_kv, d)
    key = k_pool.index_select(0, plan.decode_slots).view(batch, -1, n_kv, d).transpose(1, 2)
    value = v_pool.index_select(0, plan.decode_slots).view(batch, -1, n_kv, d).transpose(1, 2)
    return sdpa(grouped, key, value, attn_mask=plan.decode_mask, scale=scale).reshape(batch, n_q, d)


def _padded(metadata: AttentionMetadata, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
    each = [slots_of(metadata, b) for b in rows]
    lengths = [len(slots) for slots in each]
    longest = max(lengths)
    if min(lengths) == longest:
        return torch.cat(each), None
    filled = [torch.cat((slots, slots[:1].expand(longest - len(slots)))) for slots in each]
    visible = torch.arange(longest, device=each[0].device) < torch.tensor(lengths, device=each[0].device)[:, None]
    return torch.cat(filled), visible[:, None, None, :]


def _band(query_len: int, context_len: int, device: torch.device) -> torch.Tensor | None:
    """[query_len, context_len] bool, True where a row sees a position; None where plain causal attention says the same."""
    if query_len == context_len:
        return None
    return torch.ones(query_len, context_len, dtype=torch.bool, device=device).tril(context_len - query_len)
