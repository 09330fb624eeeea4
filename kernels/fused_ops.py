"""What lies between two matrix products of a decoder layer, each as one launch: norm, rotation with cache write, SwiGLU.

Rounding is where transformers' modules round, so that the same weights give the same numbers but for the order of sums.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from kernels.early_launch import early


@triton.jit
def rms_norm_kernel(
    X, RESIDUAL, WEIGHT, OUT, x_row, eps, N: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr
):
    """Grid (T,): a row of x, added to the residual stream if ADD, over its root mean square."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    mask = i < N
    weight = tl.load(WEIGHT + i, mask=mask, other=0.0)
    if PDL:
        gdc_wait()
    x = tl.load(X + row * x_row + i, mask=mask, other=0.0)
    if ADD:
        x = (x.to(tl.float32) + tl.load(RESIDUAL + row * N + i, mask=mask, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(RESIDUAL + row * N + i, x, mask=mask)
    wide = x.to(tl.float32)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide, 0) / N + eps)
    out = scaled.to(x.dtype).to(tl.float32) * weight.to(tl.float32)
    tl.store(OUT + row * N + i, out.to(OUT.dtype.element_ty), mask=mask)


@triton.jit
def rope_and_write_kernel(
    QKV, COS, SIN, POSITIONS, SLOTS, Q_OUT, KV_OUT, K_POOL, V_POOL,
    qkv_row, cos_row, q_row, kv_row, pool_slot,
    N_Q: tl.constexpr, N_KV: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, KEEP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (T, n_q + 2 n_kv): one head of one token. Queries and keys are rotated; keys and values go to the token's slot."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, HALF)
    mask = i < D // 2
    x = QKV + token * qkv_row + head * D
    if PDL:
        gdc_wait()
    low = tl.load(x + i, mask=mask, other=0.0)
    high = tl.load(x + D // 2 + i, mask=mask, other=0.0)
    kind = low.dtype
    if head < N_Q + N_KV:
        at = tl.load(POSITIONS + token).to(tl.int64) * cos_row
        cos_low = tl.load(COS + at + i, mask=mask, other=0.0).to(tl.float32)
        cos_high = tl.load(COS + at + D // 2 + i, mask=mask, other=0.0).to(tl.float32)
        sin_low = tl.load(SIN + at + i, mask=mask, other=0.0).to(tl.float32)
        sin_high = tl.load(SIN + at + D // 2 + i, mask=mask, other=0.0).to(tl.float32)
        a = low.to(tl.float32)
        b = high.to(tl.float32)
        straight_low = (a * cos_low).to(kind).to(tl.float32)
        crossed_low = (b * sin_low).to(kind).to(tl.float32)
        straight_high = (b * cos_high).to(kind).to(tl.float32)
        crossed_high = (a * sin_high).to(kind).to(tl.float32)
        low = (straight_low - crossed_low).to(kind)
        high = (straight_high + crossed_high).to(kind)
    if head < N_Q:
        out = Q_OUT + token * q_row + head * D
        tl.store(out + i, low, mask=mask)
        tl.store(out + D // 2 + i, high, mask=mask)
    else:
        kv = head - N_Q
        if KEEP:
            out = KV_OUT + token * kv_row + kv * D
            tl.store(out + i, low, mask=mask)
            tl.store(out + D // 2 + i, high, mask=mask)
        slot = tl.load(SLOTS + token)  # int64: slot * stride passes 2**31 in a large pool
        if slot >= 0:
            key = mask & (kv < N_KV)
            value = mask & (kv >= N_KV)
            k = K_POOL + slot * pool_slot + kv * D + i
            v = V_POOL + slot * pool_slot + (kv - N_KV) * D + i
            tl.store(k, low, mask=key)
            tl.store(k + D // 2, high, mask=key)
            tl.store(v, low, mask=value)
            tl.store(v + D // 2, high, mask=value)


@triton.jit
def silu_mul_kernel(GATE_UP, OUT, row_stride, N: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Grid (T, N / BLOCK): silu(gate) * up of a merged projection [T, 2 N]."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = i < N
    if PDL:
        gdc_wait()
    gate = tl.load(GATE_UP + row * row_stride + i, mask=mask, other=0.0)
    up = tl.load(GATE_UP + row * row_stride + N + i, mask=mask, other=0.0)
    wide = gate.to(tl.float32)
    active = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(OUT + row * N + i, (active * up.to(tl.float32)).to(OUT.dtype.element_ty), mask=mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None) -> torch.Tensor:
    """x [T, n] over its root mean square, times weight [n]. With a residual [T, n]: x is added to it, in place, first."""
    rows, n = x.shape
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(n)
    rms_norm_kernel[(rows,)](
        x, x if residual is None else residual, weight, out, x.stride(0), eps, N=n, BLOCK=block, ADD=residual is not None,
        num_warps=min(16, max(1, block // 256)), **early(x.device),
    )  # fmt: skip
    return out


def rope_and_write(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    q_out: torch.Tensor,
    kv_out: torch.Tensor | None = None,
) -> None:
    """Rotates the queries into q_out [T, n_q, d], and puts rotated keys and values at `slots` [T] int64 (-1: nowhere).

    qkv [T, (n_q + 2 n_kv) d], a merged projection. cos and sin [positions, d], their halves one after the other as
    transformers lays them out. positions [T] int32. Pools [num_slots, n_kv, d], contiguous. kv_out [T, 2 n_kv, d], where given,
    receives keys and values too. Heads of q_out and kv_out must be d apart. Checks nothing, waits for nothing.
    """
    n_q, d = q_out.shape[1:]
    n_kv = k_pool.shape[1]
    kept = q_out if kv_out is None else kv_out
    rope_and_write_kernel[(qkv.shape[0], n_q + 2 * n_kv)](
        qkv, cos, sin, positions, slots, q_out, kept, k_pool, v_pool,
        qkv.stride(0), cos.stride(0), q_out.stride(0), kept.stride(0), k_pool.stride(0),
        N_Q=n_q, N_KV=n_kv, D=d, HALF=triton.next_power_of_2(d // 2), KEEP=kv_out is not None, num_warps=1,
        **early(qkv.device),
    )  # fmt: skip


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, [T, n], of a merged projection [T, 2 n]."""
    rows, n = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, n), dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, triton.next_power_of_2(n))
    silu_mul_kernel[(rows, triton.cdiv(n, block))](
        gate_up, out, gate_up.stride(0), N=n, BLOCK=block, num_warps=4, **early(gate_up.device)
    )
    return out
