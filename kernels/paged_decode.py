"""Decode attention: one query row a sequence over its pages, split over the context, a KV head's query heads together.

One program takes one KV head and one piece of one sequence (kernels/decode_plan.py). The group's query heads are the rows,
padded to 16, of two tensor-core products a tile, with an online softmax in base 2 between them (Milakov and Gimelshein,
"Online normalizer calculation for softmax"; split over the context as in Flash-Decoding).

Page ids travel through the loop as scalars, loaded one tile ahead, the first ones with the piece itself: the loads of K and V
then depend on nothing that is still in flight, so they really are pipelined, and no id crosses shared memory.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from kernels.decode_launch import ROW_IDS, ROW_WIDTH, DecodePlan
from kernels.early_launch import launches_early
from kernels.merge_parts import LOWEST, merge_parts

LOG2E = 1.4426950408889634


@triton.jit
def load_pages(table, page, last, N: tl.constexpr, STEP: tl.constexpr):
    """N consecutive page ids as a tuple of scalars; clamped to the table, so garbage may come back, never a fault.

    They must be used as they were loaded: a conversion here would wait for the memory in the iteration before they are due.
    """
    out = ()
    for i in tl.static_range(N):
        out = out + (tl.load(table + tl.minimum(page + i, last) * STEP),)  # type: ignore[assignment]  # noqa: RUF005
    return out


@triton.jit
def page_starts(pages, stride, which, N: tl.constexpr):
    """int64 element offset of page pages[which], elementwise; int64 because id * stride passes 2**31 in a large pool."""
    out = pages[0].to(tl.int64) * stride
    for i in tl.static_range(1, N):
        out = tl.where(which < i, out, pages[i].to(tl.int64) * stride)
    return out


@triton.jit(do_not_specialize=["table_row", "table_width"])
def decode_kernel(
    Q, K, V, TABLE, PIECES, OUT, PART_OUT, PART_LSE,
    scale_log2, q_row, q_head, out_row, out_head, table_row, table_width, s_block, s_token, s_head,
    G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    N_KV: tl.constexpr, STAGES: tl.constexpr, PAGES: tl.constexpr, STEP: tl.constexpr, WIDTH: tl.constexpr,
    IDS: tl.constexpr, PDL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (n_kv, pieces). A piece whose part is -1 is a whole sequence and goes straight to OUT."""
    h = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    piece = PIECES + tl.program_id(1) * WIDTH
    b = tl.load(piece)
    row = tl.load(piece + 1).to(tl.int64)
    lo = tl.load(piece + 2)
    hi = tl.load(piece + 3)
    part = tl.load(piece + 4)
    last = table_width - 1
    t = tl.arange(0, TILE)
    if PAGES > 0:
        pages = load_pages(piece + IDS, 0, PAGES - 1, PAGES, 1)
    if b < 0:  # the grid is larger than the plan
        return
    table = TABLE + b.to(tl.int64) * table_row
    if PAGES == 0:
        ids = tl.load(table + tl.minimum((lo + t) // BLOCK, last) * STEP)

    g = tl.arange(0, GP)
    d = tl.arange(0, DP)
    head = h * G + g
    q_mask = (g < G)[:, None]
    if D != DP:
        q_mask = q_mask & (d < D)[None, :]
    q = tl.load(Q + row * q_row + head[:, None] * q_head + d[None, :], mask=q_mask, other=0.0)

    m = tl.full([GP], LOWEST, tl.float32)
    l = tl.zeros([GP], tl.float32)  # noqa: E741
    acc = tl.zeros([GP, DP], tl.float32)
    k_head = K + h.to(tl.int64) * s_head
    v_head = V + h.to(tl.int64) * s_head
    in_block = (t % BLOCK) * s_token  # not pos % BLOCK: the same in every tile, 11 % fewer instructions in the loop
    for j in tl.range(lo, hi, TILE, num_stages=STAGES):
        pos = j + t
        ok = pos < hi
        if PAGES > 0:  # j is a multiple of TILE
            offset = page_starts(pages, s_block, t // BLOCK, PAGES) + in_block
            if BLOCK > TILE:
                offset += (j % BLOCK) * s_token
            pages = load_pages(table, (j + TILE) // BLOCK, last, PAGES, STEP)
        else:
            offset = ids.to(tl.int64) * s_block + (pos % BLOCK) * s_token
            ids = tl.load(table + tl.minimum((pos + TILE) // BLOCK, last) * STEP)
        k_mask = ok[None, :]
        v_mask = ok[:, None]
        if D != DP:
            k_mask = k_mask & (d < D)[:, None]
            v_mask = v_mask & (d < D)[None, :]
        k = tl.load(k_head + offset[None, :] + d[:, None], mask=k_mask, other=0.0)
        v = tl.load(v_head + offset[:, None] + d[None, :], mask=v_mask, other=0.0)
        s = tl.dot(q, k, input_precision=PRECISION) * scale_log2
        s = tl.where(ok[None, :], s, LOWEST)
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        keep = tl.exp2(m - m_new)
        l = l * keep + tl.sum(p, 1)  # noqa: E741
        acc = tl.dot(p.to(v.dtype), v, acc * keep[:, None], input_precision=PRECISION)
        m = m_new
    acc = acc / tl.where(l > 0, l, 1.0)[:, None]  # l is 0 for a sequence of length 0 only: zeros

    if part < 0:
        out = OUT + row * out_row + head[:, None] * out_head + d[None, :]
        tl.store(out, acc.to(OUT.dtype.element_ty), mask=q_mask)
    else:
        at = part.to(tl.int64) * (N_KV * G) + head
        tl.store(PART_OUT + at[:, None] * D + d[None, :], acc, mask=q_mask)
        tl.store(PART_LSE + at, m + tl.log2(l), mask=g < G)


def table_words(block_tables: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The table as int32 words, and words an entry: of an int64 entry only the lower word is read. No copy."""
    if block_tables.dtype == torch.int64:
        return block_tables.view(torch.int32), 2
    return block_tables, 1


def paged_decode(
    query: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
    plan: DecodePlan,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Writes the planned rows of out [T, n_q, d]; rows of length 0 become zeros.

    query [T, n_q, d], any strides but the last; k_pool and v_pool [num_slots, n_kv, d] of equal strides, slots nobody wrote
    may hold NaN; block_tables [B, W] int32 or int64, padding may hold anything. fp16, bf16 or fp32, sums in fp32. Checks
    nothing (kernels/triton_paged.py does) and waits for nothing: it can be captured in a CUDA graph.
    """
    (n_q, d), n_kv, config = query.shape[1:], k_pool.shape[1], plan.config
    group, pdl = n_q // n_kv, plan.may_cut and launches_early(query.device)
    table, step = table_words(block_tables)
    decode_kernel[(n_kv, plan.grid)](
        query, k_pool, v_pool, table, plan.pieces, out, plan.part_out, plan.part_lse,
        scale * LOG2E, query.stride(0), query.stride(1), out.stride(0), out.stride(1),
        table.stride(0), block_tables.shape[1], block_size * k_pool.stride(0), k_pool.stride(0), k_pool.stride(1),
        G=group, GP=max(16, triton.next_power_of_2(group)), D=d, DP=max(16, triton.next_power_of_2(d)), BLOCK=block_size,
        TILE=config.shape.tile, N_KV=n_kv, STAGES=config.shape.stages, PAGES=config.pages, STEP=step, WIDTH=ROW_WIDTH,
        IDS=ROW_IDS, PDL=pdl, PRECISION="ieee" if query.dtype == torch.float32 else "tf32", num_warps=config.shape.warps,
    )  # fmt: skip
    if plan.may_cut:
        merge_parts(plan.part_out, plan.part_lse, plan.merges, out, plan.most_parts, pdl)
