"""Writes the new tokens' keys and values into the paged pool."""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def cache_write_kernel(
    KEY, VALUE, K_POOL, V_POOL, SLOTS,
    key_token, key_head, value_token, value_head, k_slot, k_head, v_slot, v_head,
    N_KV: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (T, n_kv * D / BLOCK): one program copies BLOCK numbers of one token's K and as many of its V."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(SLOTS + token)  # int64: slot * stride passes 2**31 in a large pool
    if slot < 0:
        return
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    head, dim, mask = i // D, i % D, i < N_KV * D
    key = tl.load(KEY + token * key_token + head * key_head + dim, mask=mask)
    value = tl.load(VALUE + token * value_token + head * value_head + dim, mask=mask)
    tl.store(K_POOL + slot * k_slot + head * k_head + dim, key, mask=mask)
    tl.store(V_POOL + slot * v_slot + head * v_head + dim, value, mask=mask)


def write_kv(
    key: torch.Tensor, value: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Stores key and value [T, n_kv, d] at slot_mapping [T] (int64) of k_pool and v_pool [num_slots, n_kv, d], in place.

    Slot -1 writes nothing. Any strides, as long as the last dimension is contiguous; two tokens of one slot race. The caller
    vouches for slots < num_slots: looking would wait for the device. Raises ValueError or TypeError before it writes.
    """
    _check(key, value, k_pool, v_pool, slot_mapping)
    num_tokens, n_kv, d = key.shape
    if num_tokens == 0:
        return
    block = min(1024, triton.next_power_of_2(n_kv * d))
    cache_write_kernel[(num_tokens, triton.cdiv(n_kv * d, block))](
        key, value, k_pool, v_pool, slot_mapping,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        k_pool.stride(0), k_pool.stride(1), v_pool.stride(0), v_pool.stride(1),
        N_KV=n_kv, D=d, BLOCK=block, num_warps=4 if block >= 512 else 1,
    )  # fmt: skip


def _check(
    key: torch.Tensor, value: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    if key.dim() != 3 or key.shape != value.shape:
        raise ValueError(f"key and value must both be [T, n_kv, d], got {list(key.shape)} and {list(value.shape)}.")
    if k_pool.dim() != 3 or k_pool.shape != v_pool.shape or k_pool.shape[1:] != key.shape[1:]:
        raise ValueError(
            f"Pools must both be [num_slots, {key.shape[1]}, {key.shape[2]}], "
            f"got {list(k_pool.shape)} and {list(v_pool.shape)}."
        )
    if slot_mapping.dtype != torch.int64:
        raise TypeError(f"slot_mapping must be int64 (a slot times its stride passes 2**31), got {slot_mapping.dtype}.")
    if slot_mapping.shape != key.shape[:1] or not slot_mapping.is_contiguous():
        raise ValueError(f"slot_mapping must be a contiguous [{key.shape[0]}], got {list(slot_mapping.shape)}.")
    if not key.dtype == value.dtype == k_pool.dtype == v_pool.dtype:
        raise TypeError(f"One dtype is needed: key {key.dtype}, value {value.dtype}, pools {k_pool.dtype}, {v_pool.dtype}.")
    tensors = (key, value, k_pool, v_pool, slot_mapping)
    if len({tensor.device for tensor in tensors}) != 1:
        raise ValueError(f"All tensors must share a device: {', '.join(str(tensor.device) for tensor in tensors)}.")
    if any(tensor.stride(-1) != 1 for tensor in tensors[:4]):
        raise ValueError("The last dimension of key, value and the pools must be contiguous.")
