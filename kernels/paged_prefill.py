"""Prefill attention: chunks of any length, each row seeing the positions up to its own, over pages.

One program takes one KV head and a block of rows (kernels/prefill_plan.py); a row is one query row with one head of the
group, so that K and V are read once for the group. It runs over its context twice: tiles that every row sees whole, with no
mask, then the diagonal (Dao, "FlashAttention-2", section 3.1; chunks with an offset as in Agrawal et al., "Sarathi").
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.merge_parts import LOWEST, merge_parts
from kernels.paged_decode import LOG2E, load_pages, page_starts, table_words
from kernels.prefill_plan import PrefillConfig, PrefillPieces


@triton.jit
def attend_tiles(
    q, k_head, v_head, table, last, s_block, s_token, scale_log2, m, l, acc, limit, start, stop,  # noqa: E741
    D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, PAGES: tl.constexpr,
    STEP: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Folds positions start .. stop - 1 into (m, l, acc). Unmasked: every row sees every one, and tiles are whole."""
    t = tl.arange(0, TILE)
    d = tl.arange(0, DP)
    in_block = (t % BLOCK) * s_token
    if PAGES > 0:
        pages = load_pages(table, start // BLOCK, last, PAGES, STEP)
    else:
        ids = tl.load(table + tl.minimum((start + t) // BLOCK, last) * STEP)
    for j in tl.range(start, stop, TILE, num_stages=STAGES):
        pos = j + t
        if PAGES > 0:
            offset = page_starts(pages, s_block, t // BLOCK, PAGES) + in_block
            if BLOCK > TILE:
                offset += (j % BLOCK) * s_token
            pages = load_pages(table, (j + TILE) // BLOCK, last, PAGES, STEP)
        else:
            offset = ids.to(tl.int64) * s_block + (pos % BLOCK) * s_token
            ids = tl.load(table + tl.minimum((pos + TILE) // BLOCK, last) * STEP)
        k_at = k_head + offset[None, :] + d[:, None]
        v_at = v_head + offset[:, None] + d[None, :]
        if MASKED:
            k_mask = (pos < stop)[None, :] & (d < D)[:, None]
            v_mask = (pos < stop)[:, None] & (d < D)[None, :]
            k = tl.load(k_at, mask=k_mask, other=0.0)
            v = tl.load(v_at, mask=v_mask, other=0.0)
        elif D != DP:
            k = tl.load(k_at, mask=(d < D)[:, None], other=0.0)
            v = tl.load(v_at, mask=(d < D)[None, :], other=0.0)
        else:
            k = tl.load(k_at)
            v = tl.load(v_at)
        s = tl.dot(q, k, input_precision=PRECISION) * scale_log2
        if MASKED:
            seen = (pos[None, :] <= limit[:, None]) & (pos < stop)[None, :]
            s = tl.where(seen, s, LOWEST)
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        if MASKED:
            p = tl.where(seen, p, 0.0)  # a row that has seen nothing yet: exp2(LOWEST - LOWEST) is 1
        keep = tl.exp2(m - m_new)
        l = l * keep + tl.sum(p, 1)  # noqa: E741
        acc = tl.dot(p.to(v.dtype), v, acc * keep[:, None], input_precision=PRECISION)
        m = m_new
    return m, l, acc


@triton.jit(do_not_specialize=["table_row", "table_width"])
def prefill_kernel(
    Q, K, V, TABLE, PIECES, OUT, PART_OUT, PART_LSE,
    scale_log2, q_row, q_head, out_row, out_head, table_row, table_width, s_block, s_token, s_head,
    G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, TILE: tl.constexpr,
    N_KV: tl.constexpr, STAGES: tl.constexpr, PAGES: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (n_kv, pieces)."""
    h = tl.program_id(0)
    piece = PIECES + tl.program_id(1) * 8
    b = tl.load(piece).to(tl.int64)
    row = tl.load(piece + 1).to(tl.int64)
    rows = tl.load(piece + 2)
    position = tl.load(piece + 3)
    lo = tl.load(piece + 4)
    hi = tl.load(piece + 5)
    part = tl.load(piece + 6)
    table = TABLE + b * table_row

    i = tl.arange(0, BLOCK_M)
    d = tl.arange(0, DP)
    r = i // G
    head = h * G + i % G
    mask = (r < rows)[:, None] & (d < D)[None, :]
    q = tl.load(Q + (row + r)[:, None] * q_row + head[:, None] * q_head + d[None, :], mask=mask, other=0.0)
    limit = position + r
    k_head = K + h.to(tl.int64) * s_head
    v_head = V + h.to(tl.int64) * s_head

    m = tl.full([BLOCK_M], LOWEST, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)  # noqa: E741
    acc = tl.zeros([BLOCK_M, DP], tl.float32)
    diagonal = tl.maximum(lo, tl.minimum(hi, position + 1) // TILE * TILE)  # below it, every row sees whole tiles
    m, l, acc = attend_tiles(  # noqa: E741
        q, k_head, v_head, table, table_width - 1, s_block, s_token, scale_log2, m, l, acc, limit, lo, diagonal,
        D, DP, BLOCK, TILE, STAGES, PAGES, STEP, False, PRECISION,
    )  # fmt: skip
    m, l, acc = attend_tiles(  # noqa: E741
        q, k_head, v_head, table, table_width - 1, s_block, s_token, scale_log2, m, l, acc, limit, diagonal, hi,
        D, DP, BLOCK, TILE, STAGES, PAGES, STEP, True, PRECISION,
    )  # fmt: skip
    acc = acc / tl.where(l > 0, l, 1.0)[:, None]  # l is 0 where a row sees nothing: zeros

    if part < 0:
        out = OUT + (row + r)[:, None] * out_row + head[:, None] * out_head + d[None, :]
        tl.store(out, acc.to(OUT.dtype.element_ty), mask=mask)
    else:
        at = (part + r).to(tl.int64) * (N_KV * G) + head
        tl.store(PART_OUT + at[:, None] * D + d[None, :], acc, mask=mask)
        tl.store(PART_LSE + at, tl.where(l > 0, m + tl.log2(l), LOWEST), mask=r < rows)


class PrefillPlan:
    """The blocks of one forward pass on the device, and scratch for those cut over the context; made once for all layers."""

    def __init__(
        self, config: PrefillConfig, pieces: PrefillPieces, rows: torch.Tensor, merges: torch.Tensor, n_q: int, head_dim: int
    ) -> None:
        """rows and merges: `pieces`' arrays, on the device."""
        self.config, self.most_parts = config, pieces.most_parts
        self.pieces, self.merges = rows, merges
        self.part_out = torch.empty((pieces.parts, n_q, head_dim), dtype=torch.float32, device=rows.device)
        self.part_lse = torch.empty((pieces.parts, n_q), dtype=torch.float32, device=rows.device)


def paged_prefill(
    query: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
    plan: PrefillPlan,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Writes the planned rows of out [T, n_q, d]; rows that see nothing become zeros. Shapes as `paged_decode`."""
    if plan.config.resident:
        from kernels.hopper_prefill import hopper_prefill  # Gluon is imported where it runs only

        hopper_prefill(query, k_pool, v_pool, block_tables, block_size, plan, scale, out)
    else:
        (n_q, d), n_kv, config = query.shape[1:], k_pool.shape[1], plan.config
        table, step = table_words(block_tables)
        prefill_kernel[(n_kv, plan.pieces.shape[0])](
            query, k_pool, v_pool, table, plan.pieces, out, plan.part_out, plan.part_lse,
            scale * LOG2E, query.stride(0), query.stride(1), out.stride(0), out.stride(1),
            table.stride(0), block_tables.shape[1], block_size * k_pool.stride(0), k_pool.stride(0), k_pool.stride(1),
            G=n_q // n_kv, D=d, DP=max(16, triton.next_power_of_2(d)), BLOCK=block_size, BLOCK_M=config.block_m,
            TILE=config.tile, N_KV=n_kv, STAGES=config.stages, PAGES=config.pages, STEP=step,
            PRECISION="ieee" if query.dtype == torch.float32 else "tf32", num_warps=config.warps,
        )  # fmt: skip
    if plan.merges.shape[0]:
        merge_parts(plan.part_out, plan.part_lse, plan.merges, out, plan.most_parts, pdl=False)
