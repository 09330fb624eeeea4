"""Joins what several programs found over parts of one context into one softmax."""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

LOWEST: tl.constexpr = tl.constexpr(-1.0e30)  # a score nothing reaches; not -inf, since (-inf) - (-inf) is NaN


@triton.jit
def merge_kernel(
    PART_OUT, PART_LSE, MERGES, OUT, out_row, out_head,
    N_Q: tl.constexpr, D: tl.constexpr, DB: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (n_q, rows, D / DB): weighs a row's parts by their base-2 log-sum-exp, PARTS of them a step, in order.

    MERGES [rows, 4]: output row, first part, distance between parts, number of parts (0: the row is not cut).
    """
    head = tl.program_id(0)
    item = MERGES + tl.program_id(1) * 4
    row = tl.load(item).to(tl.int64)
    first = tl.load(item + 1)
    step = tl.load(item + 2)
    count = tl.load(item + 3)
    d = tl.program_id(2) * DB + tl.arange(0, DB)
    e = tl.arange(0, PARTS)
    if PDL:
        gdc_wait()  # whatever the kernel before wrote is visible from here on
    if count == 0:
        return
    m = tl.full([], LOWEST, tl.float32)
    w = tl.zeros([], tl.float32)
    acc = tl.zeros([DB], tl.float32)
    for start in tl.range(0, count, PARTS, num_stages=1):
        ok = start + e < count
        part = (first + (start + e) * step).to(tl.int64) * N_Q + head
        lse = tl.load(PART_LSE + part, mask=ok, other=LOWEST)
        out = tl.load(PART_OUT + part[:, None] * D + d[None, :], mask=ok[:, None] & (d < D)[None, :], other=0.0)
        m_new = tl.maximum(m, tl.max(lse, 0))
        keep = tl.exp2(m - m_new)
        weight = tl.where(ok, tl.exp2(lse - m_new), 0.0)
        acc = acc * keep + tl.sum(out * weight[:, None], 0)
        w = w * keep + tl.sum(weight, 0)
        m = m_new
    tl.store(OUT + row * out_row + head * out_head + d, (acc / w).to(OUT.dtype.element_ty), mask=d < D)


def merge_parts(
    part_out: torch.Tensor, part_lse: torch.Tensor, merges: torch.Tensor, out: torch.Tensor, most_parts: int, pdl: bool
) -> None:
    """part_out [parts, n_q, d] and part_lse [parts, n_q], float32; merges [rows, 4] int32; writes rows of out [T, n_q, d].

    `most_parts` is about how many parts a row has; more are right too, only slower. `pdl`: launched early, under
    programmatic dependent launch, so that it is resident and waiting when the kernel before it ends.
    """
    n_q, d = out.shape[1:]
    parts = min(64, max(2, triton.next_power_of_2(most_parts)))
    block = triton.next_power_of_2(d) if parts <= 16 else min(triton.next_power_of_2(d), 64)
    warps = 1 if parts * block <= 1024 else 2 if parts * block <= 2048 else 4
    launch: dict[str, Any] = {"launch_pdl": True} if pdl else {}
    merge_kernel[(n_q, merges.shape[0], triton.cdiv(d, block))](
        part_out, part_lse, merges, out, out.stride(0), out.stride(1),
        N_Q=n_q, D=d, DB=block, PARTS=parts, PDL=pdl, num_warps=warps, **launch,
    )  # fmt: skip
