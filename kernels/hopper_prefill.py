"""Prefill attention on Hopper, in Gluon: the pieces of kernels/paged_prefill.py, with softmax and products side by side.

A program stays on its multiprocessor and takes pieces in turn; three parts of it run at once. One warp loads: page by page,
the copy engine (TMA) puts K and V of a tile into shared memory, some tiles ahead. Two warpgroups compute, 64 rows each: while
one takes the softmax of a tile, its product of weights and V of the tile before is under way, and so are the other's (Shah et
al., "FlashAttention-3", sections 3.1 and 3.2). Tiles are taken from the last down, so that those which need a mask come first.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma as multiply
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait as wait_for
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.paged_decode import LOG2E, table_words

if TYPE_CHECKING:
    from kernels.paged_prefill import PrefillPlan

LOWEST = gl.constexpr(-1.0e30)  # as in kernels/merge_parts.py
COLUMNS = gl.constexpr(64)  # of one copy: 128 bytes, the widest that shared memory's swizzle takes
ROWS = gl.constexpr(64)  # of a warpgroup
SWIZZLED = gl.NVMMASharedLayout(128, 16, rank=3)


@gluon.jit
def turn(w, N_KV: gl.constexpr):
    """(piece, KV head) of this program's turn w: to and fro, as pieces come in falling order and all shall have as much."""
    programs = gl.num_programs(0)
    at = w * programs + gl.where(w % 2 == 0, gl.program_id(0), programs - 1 - gl.program_id(0))
    return at // N_KV, at % N_KV


@gluon.jit
def load_tiles(
    K, V, k_pages, v_pages, k_full, v_full, empty, TABLE, PIECES, pieces, table_row,
    BLOCK: gl.constexpr, TILE: gl.constexpr, N_KV: gl.constexpr, STAGES: gl.constexpr, STEP: gl.constexpr,
):  # fmt: skip
    """The loading warp: K and V of every tile, once both warpgroups have done with what lies in its stage.

    k_pages, v_pages: [STAGES * halves * boxes, BOX, 1, 64]; box by box, one half of a tile's columns lies behind the other.
    """
    BOX: gl.constexpr = K.block_type.shape[0]
    BOXES: gl.constexpr = TILE // BOX
    HALVES: gl.constexpr = k_pages.shape[0] // (STAGES * BOXES)
    BYTES: gl.constexpr = TILE * HALVES * COLUMNS * 2
    n = 0  # tiles so far
    for w in range(gl.cdiv(pieces * N_KV, gl.num_programs(0))):
        index, h = turn(w, N_KV)
        if index < pieces:
            piece = PIECES + index * 8
            table = TABLE + gl.load(piece).to(gl.int64) * table_row
            lo = gl.load(piece + 4)
            hi = gl.load(piece + 5)
            tiles = gl.maximum(1, gl.cdiv(hi - lo, TILE))
            last = gl.maximum(0, (hi - 1) // BLOCK)  # stands for the pages past the end, of which nothing is looked at
            for i in range(tiles):
                start = lo + (tiles - 1 - i) * TILE
                stage = n % STAGES
                slots = ()
                for b in gl.static_range(BOXES):
                    at = start + b * BOX
                    page = gl.load(table + gl.minimum(at // BLOCK, last) * STEP)
                    slots = slots + (page * BLOCK + at % BLOCK,)  # type: ignore[assignment]  # noqa: RUF005
                mbarrier.wait(empty.index(stage), ((n // STAGES) & 1) ^ 1)
                mbarrier.expect(k_full.index(stage), BYTES)
                for c in gl.static_range(HALVES):
                    for b in gl.static_range(BOXES):
                        to = k_pages.index((stage * HALVES + c) * BOXES + b)
                        tma.async_copy_global_to_shared(K, [slots[b], h, c * COLUMNS], k_full.index(stage), to)
                mbarrier.expect(v_full.index(stage), BYTES)
                for c in gl.static_range(HALVES):
                    for b in gl.static_range(BOXES):
                        to = v_pages.index((stage * HALVES + c) * BOXES + b)
                        tma.async_copy_global_to_shared(V, [slots[b], h, c * COLUMNS], v_full.index(stage), to)
                n += 1


@gluon.jit
def fold(s, m, l, start, limit, scale, MASKED: gl.constexpr):  # noqa: E741
    """Scores [64, TILE] -> (m, l, weights, what sums so far are to be multiplied with). m is of scores times scale."""
    if MASKED:
        seen = (start + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout)))[None, :] <= limit[:, None]
        s = gl.where(seen, s, LOWEST)
    m_new = gl.maximum(m, gl.max(s, 1) * scale)
    p = gl.exp2(s * scale - m_new[:, None])
    if MASKED:
        p = gl.where(seen, p, 0.0)  # a row that has seen nothing yet
    keep = gl.exp2(m - m_new)
    return m_new, l * keep + gl.sum(p, 1), p, keep


@gluon.jit
def attend_step(
    n, more, q, k_tiles, v_tiles, k_full, v_full, empty, start, limit, scale, m, l, weights, acc,  # noqa: E741
    STAGES: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Scores and softmax of tile n beside the product of tile n - 1 with its weights. K of tile n is there."""
    TILE: gl.constexpr = k_tiles.shape[1]
    before = (n - 1) % STAGES
    p = gl.convert_layout(weights.to(q.dtype), gl.DotOperandLayout(0, acc.type.layout, 2))
    S_LAYOUT: gl.constexpr = weights.type.layout
    zeros = gl.zeros([ROWS, TILE], gl.float32, S_LAYOUT)
    s = multiply(q, k_tiles.index(n % STAGES).permute([1, 0]), zeros, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(before), ((n - 1) // STAGES) & 1)
    acc = multiply(p, v_tiles.index(before), acc, is_async=True)
    s = wait_for(1, deps=(s,))
    m, l, weights, keep = fold(s, m, l, start, limit, scale, MASKED)  # noqa: E741
    # stands here, though nothing needs it yet, to part blocks of code: ptxas puts softmax behind the product's wait otherwise
    mbarrier.wait(k_full.index((n + 1) % STAGES), ((n + 1) // STAGES) & 1, pred=more)
    acc = wait_for(0, deps=(acc,))
    mbarrier.arrive(empty.index(before))
    acc = acc * gl.convert_layout(keep, gl.SliceLayout(1, acc.type.layout))[:, None]
    return m, l, weights, acc


@gluon.jit
def finish(
    WHICH: gl.constexpr, q, m, l, acc, OUT, PART_OUT, PART_LSE, piece, h, out_row, out_head,  # noqa: E741
    G: gl.constexpr, D: gl.constexpr, N_KV: gl.constexpr,
):  # fmt: skip
    """Writes a warpgroup's rows of a piece, to OUT or to its part; what held Q is free by now."""
    DP: gl.constexpr = q.shape[1]
    row = gl.load(piece + 1).to(gl.int64)
    rows = gl.load(piece + 2)
    part = gl.load(piece + 6)
    first = WHICH * ROWS + gl.load(piece + 7)  # as in attend_rows
    total = gl.convert_layout(l, gl.SliceLayout(1, acc.type.layout))
    acc = acc / gl.where(total > 0, total, 1.0)[:, None]  # l is 0 where a row sees nothing: zeros
    if part < 0:
        WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DP, DP // 8], [4, 1], [1, 0])
        i = first + gl.arange(0, ROWS, gl.SliceLayout(1, WIDE))
        d = gl.arange(0, DP, gl.SliceLayout(0, WIDE))[None, :]
        q.store(acc.to(q.dtype))  # through shared memory: whole lines are written then
        at = OUT + (row + i // G)[:, None] * out_row + (h * G + i % G)[:, None] * out_head + d
        gl.store(at, q.load(WIDE), mask=(i // G < rows)[:, None] & (d < D))
    else:
        i_s = first + gl.arange(0, ROWS, l.type.layout)
        i_o = first + gl.arange(0, ROWS, gl.SliceLayout(1, acc.type.layout))
        d_o = gl.arange(0, DP, gl.SliceLayout(0, acc.type.layout))[None, :]
        at_s = (part + i_s // G).to(gl.int64) * (N_KV * G) + h * G + i_s % G
        at_o = (part + i_o // G).to(gl.int64) * (N_KV * G) + h * G + i_o % G
        gl.store(PART_LSE + at_s, gl.where(l > 0, m + gl.log2(l), LOWEST), mask=i_s // G < rows)
        gl.store(PART_OUT + at_o[:, None] * D + d_o, acc, mask=(i_o // G < rows)[:, None] & (d_o < D))


@gluon.jit
def attend_rows(
    q_smem, k_tiles, v_tiles, k_full, v_full, empty, Q, OUT, PART_OUT, PART_LSE, PIECES, pieces,
    scale, q_row, q_head, out_row, out_head,
    WHICH: gl.constexpr, G: gl.constexpr, D: gl.constexpr, N_KV: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """A computing warpgroup: rows 64 * WHICH and the 63 after it of every piece."""
    TILE: gl.constexpr = k_tiles.shape[1]
    DP: gl.constexpr = k_tiles.shape[2]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DP, 16])
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DP, DP // 8], [4, 1], [1, 0])  # 16 bytes a thread
    q = q_smem.index(WHICH)
    n = 0
    for w in range(gl.cdiv(pieces * N_KV, gl.num_programs(0))):
        index, h = turn(w, N_KV)
        if index < pieces:
            piece = PIECES + index * 8
            row = gl.load(piece + 1).to(gl.int64)
            rows = gl.load(piece + 2)
            position = gl.load(piece + 3)
            lo = gl.load(piece + 4)
            hi = gl.load(piece + 5)
            first = WHICH * ROWS + gl.load(piece + 7)  # which is 0; what is made of it is not kept in registers between pieces
            i = first + gl.arange(0, ROWS, gl.SliceLayout(1, WIDE))
            i_s = first + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
            d = gl.arange(0, DP, gl.SliceLayout(0, WIDE))[None, :]
            at = Q + (row + i // G)[:, None] * q_row + (h * G + i % G)[:, None] * q_head + d
            loaded = gl.load(at, mask=(i // G < rows)[:, None] & (d < D), other=0.0)
            q.store(gl.where(scale < 0, -loaded, loaded))  # exact, and the largest product stays the largest score
            fence_async_shared()
            gl.thread_barrier()

            factor = gl.maximum(scale, -scale)
            limit = gl.minimum(position + i_s // G, hi - 1)
            tiles = gl.maximum(1, gl.cdiv(hi - lo, TILE))
            whole = gl.maximum(0, gl.minimum(hi, position + 1) - lo) // TILE  # tiles that every row sees whole
            masked = gl.maximum(1, tiles - whole)
            start = lo + (tiles - 1) * TILE
            mbarrier.wait(k_full.index(n % STAGES), (n // STAGES) & 1)
            zeros = gl.zeros([ROWS, TILE], gl.float32, S_LAYOUT)
            s = multiply(q, k_tiles.index(n % STAGES).permute([1, 0]), zeros, use_acc=False, is_async=True)
            s = wait_for(0, deps=(s,))
            m = gl.full([ROWS], LOWEST, gl.float32, gl.SliceLayout(1, S_LAYOUT))
            l = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_LAYOUT))  # noqa: E741
            m, l, weights, _ = fold(s, m, l, start, limit, factor, True)  # noqa: E741
            if start + TILE > hi:  # slots past the end may hold NaN, and 0 * NaN is NaN; both warpgroups write the same
                mbarrier.wait(v_full.index(n % STAGES), (n // STAGES) & 1)
                v = v_tiles.index(n % STAGES)
                values = v.load(WIDE)
                used = (start + gl.arange(0, TILE, gl.SliceLayout(1, WIDE)) < hi)[:, None]
                v.store(gl.where(used, values, gl.zeros_like(values)))
                fence_async_shared()
                gl.thread_barrier()
            acc = gl.zeros([ROWS, DP], gl.float32, O_LAYOUT)
            mbarrier.wait(k_full.index((n + 1) % STAGES), ((n + 1) // STAGES) & 1, pred=tiles > 1)
            for t in range(1, masked):
                m, l, weights, acc = attend_step(  # noqa: E741
                    n + t, t + 1 < tiles, q, k_tiles, v_tiles, k_full, v_full, empty, start - t * TILE, limit, factor,
                    m, l, weights, acc, STAGES, True,
                )  # fmt: skip
            for t in range(masked, tiles):
                m, l, weights, acc = attend_step(  # noqa: E741
                    n + t, t + 1 < tiles, q, k_tiles, v_tiles, k_full, v_full, empty, start - t * TILE, limit, factor,
                    m, l, weights, acc, STAGES, False,
                )  # fmt: skip
            n += tiles
            before = (n - 1) % STAGES
            mbarrier.wait(v_full.index(before), ((n - 1) // STAGES) & 1)
            p = gl.convert_layout(weights.to(q.dtype), gl.DotOperandLayout(0, O_LAYOUT, 2))
            acc = multiply(p, v_tiles.index(before), acc, is_async=True)
            acc = wait_for(0, deps=(acc,))
            mbarrier.arrive(empty.index(before))
            finish(WHICH, q, m, l, acc, OUT, PART_OUT, PART_LSE, piece, h, out_row, out_head, G, D, N_KV)


@gluon.jit(do_not_specialize=["table_row", "pieces"])
def hopper_prefill_kernel(
    Q, K, V, TABLE, PIECES, OUT, PART_OUT, PART_LSE, scale, q_row, q_head, out_row, out_head, table_row, pieces,
    G: gl.constexpr, D: gl.constexpr, DP: gl.constexpr, BLOCK: gl.constexpr, TILE: gl.constexpr, N_KV: gl.constexpr,
    STAGES: gl.constexpr, STEP: gl.constexpr,
):  # fmt: skip
    """Grid (programs); K, V: the pools [num_slots, n_kv, D] in boxes of [BOX, 1, 64], BOX slots of one page."""
    PAGES: gl.constexpr = [STAGES * (DP // COLUMNS) * (TILE // K.block_type.shape[0]), K.block_type.shape[0], 1, COLUMNS]
    FLAT: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    q_smem = gl.allocate_shared_memory(K.dtype, [2, ROWS, DP], FLAT)
    k_pages = gl.allocate_shared_memory(K.dtype, PAGES, K.layout)
    v_pages = gl.allocate_shared_memory(K.dtype, PAGES, K.layout)
    k_tiles = k_pages._reinterpret(K.dtype, [STAGES, TILE, DP], FLAT)
    v_tiles = v_pages._reinterpret(K.dtype, [STAGES, TILE, DP], FLAT)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    gl.warp_specialize(  # tuples in full: put together, they would forget which numbers are constants
        [
            (attend_rows, (
                q_smem, k_tiles, v_tiles, k_full, v_full, empty, Q, OUT, PART_OUT, PART_LSE, PIECES, pieces,
                scale, q_row, q_head, out_row, out_head, 0, G, D, N_KV, STAGES,
            )),
            (attend_rows, (
                q_smem, k_tiles, v_tiles, k_full, v_full, empty, Q, OUT, PART_OUT, PART_LSE, PIECES, pieces,
                scale, q_row, q_head, out_row, out_head, 1, G, D, N_KV, STAGES,
            )),
            (load_tiles, (
                K, V, k_pages, v_pages, k_full, v_full, empty, TABLE, PIECES, pieces, table_row,
                BLOCK, TILE, N_KV, STAGES, STEP,
            )),
        ],
        [4, 1],
        [240, 24],  # registers a thread: 2 * 240 + 32 are all there are for 128 threads of each part
    )  # fmt: skip


def hopper_prefill(
    query: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
    plan: PrefillPlan,
    scale: float,
    out: torch.Tensor,
) -> None:
    """As `paged_prefill`, without its merge. bfloat16 or float16; pools as `in_boxes` (kernels/triton_paged.py) asks."""
    (n_q, d), n_kv, config = query.shape[1:], k_pool.shape[1], plan.config
    table, step = table_words(block_tables)
    box, pieces = [min(block_size, config.tile), 1, COLUMNS.value], plan.pieces.shape[0]
    keys, values = (TensorDescriptor.from_tensor(pool, box, SWIZZLED) for pool in (k_pool, v_pool))
    hopper_prefill_kernel[(min(config.resident, pieces * n_kv),)](
        query, keys, values, table, plan.pieces, out, plan.part_out, plan.part_lse,
        scale * LOG2E, query.stride(0), query.stride(1), out.stride(0), out.stride(1), table.stride(0), pieces,
        G=n_q // n_kv, D=d, DP=triton.next_power_of_2(d), BLOCK=block_size, TILE=config.tile, N_KV=n_kv,
        STAGES=config.stages, STEP=step, num_warps=4,
    )  # fmt: skip
