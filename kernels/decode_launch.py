"""The decode plan on the device: made there, from lengths that are there, into buffers that never move.

One small launch a forward pass, shared by all layers; it can be captured in a CUDA graph with them. `plan_pieces` in
kernels/decode_plan.py says the same in plain Python.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.decode_plan import EVEN_CHOICES, MAX_PAGES, Cut, DecodeConfig

ROW_IDS = 8  # where the first page ids begin in a row of the plan
ROW_WIDTH = ROW_IDS + MAX_PAGES  # int32: 64 bytes


@triton.jit
def piece_sizes(tiles, count, programs, capacity, CUT: tl.constexpr, CHOICES: tl.constexpr):
    """(large, small, limit) in tiles, as kernels.decode_plan.piece_sizes."""
    total = tl.sum(tiles, 0)
    longest = tl.max(tiles, 0)
    if CUT == 0:
        large = tl.maximum(longest, 1)
        small = large
        limit = longest
    elif CUT == 1:
        most = tl.maximum(tl.minimum(capacity // count, longest), 1)
        least = tl.maximum(tl.minimum(2 * programs // (3 * count), most), 1)
        parts = least + tl.arange(0, CHOICES) * tl.cdiv(most - least + 1, CHOICES)
        padding = tl.cdiv(longest, parts) * parts
        key = padding * 4096 + tl.minimum(tl.abs(parts - programs // count), 4095)
        best = tl.min(tl.where(parts <= most, key, 1 << 62), 0)
        parts = tl.max(tl.where((parts <= most) & (key == best), parts, 0), 0)
        large = tl.maximum(tl.cdiv(longest, parts), 1)
        small = large
        limit = large
    else:
        large = tl.maximum(tl.cdiv(85 * total, 100 * programs), 1)
        small = tl.maximum((total + 4 * programs) // (8 * programs), 1)
        limit = tl.maximum(total // programs, large)
        cut = tiles > limit
        rest = tl.sum(tl.where(cut, tiles % large, 0), 0)
        room = capacity - tl.sum(tl.where(cut, tiles // large, 0), 0) - count
        small = tl.maximum(small, tl.cdiv(rest, tl.maximum(room, 1)))
    return large, small, limit


@triton.jit(do_not_specialize=["count", "table_row", "table_width", "programs", "capacity"])
def plan_kernel(
    BATCH, TABLE, PIECES, MERGES, count, table_row, table_width, programs, capacity,
    CUT: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, PAGES: tl.constexpr, WIDTH: tl.constexpr, IDS: tl.constexpr,
    LANES: tl.constexpr, STEP: tl.constexpr, CHOICES: tl.constexpr,
):  # fmt: skip
    """Grid (count,): program i looks at all lengths and writes the pieces of sequence i where they belong in the order.

    BATCH [3, count] int32: each sequence's row of the table, row of the query, length in tokens. PIECES [capacity, WIDTH]:
    table row (-1: nothing to do), query row, lo, hi, part (-1: the whole sequence), ..., first page ids from IDS on.
    """
    i = tl.program_id(0)
    lane = tl.arange(0, LANES)
    real = lane < count
    tokens = tl.load(BATCH + 2 * count + lane, mask=real, other=0)
    tiles = tl.cdiv(tokens, TILE)
    large, small, limit = piece_sizes(tiles.to(tl.int64), count, programs, capacity, CUT, CHOICES)
    large = large.to(tl.int32)
    small = small.to(tl.int32)
    limit = limit.to(tl.int32)
    cut = tiles > limit
    n_large = tl.where(cut, tiles // large, 0)
    n_small = tl.where(cut, tl.cdiv(tiles - n_large * large, small), 0)
    whole = real & (tiles <= limit)
    all_large = tl.sum(n_large, 0)
    all_small = tl.sum(n_small, 0)
    before = lane < i
    mine = lane == i
    my_tokens = tl.sum(tl.where(mine, tokens, 0), 0)
    my_tiles = tl.sum(tl.where(mine, tiles, 0), 0)
    my_large = tl.sum(tl.where(mine, n_large, 0), 0)
    my_parts = my_large + tl.sum(tl.where(mine, n_small, 0), 0)
    first = tl.sum(tl.where(before, n_large + n_small, 0), 0)
    # the order: whole sequences longer than a large piece, large pieces, whole ones, small pieces, short whole ones
    large_at = tl.sum((whole & (tiles > large)).to(tl.int32), 0) + tl.sum(tl.where(before, n_large, 0), 0)
    small_at = all_large + tl.sum((whole & (tiles > small)).to(tl.int32), 0) + tl.sum(tl.where(before, n_small, 0), 0)
    ahead = whole & ((tiles > my_tiles) | ((tiles == my_tiles) & before))
    whole_at = tl.sum(ahead.to(tl.int32), 0)
    if my_tiles <= large:
        whole_at += all_large
    if my_tiles <= small:
        whole_at += all_small

    b = tl.load(BATCH + i)
    row = tl.load(BATCH + count + i)
    table = TABLE + b.to(tl.int64) * table_row
    e = tl.arange(0, STEP)
    is_whole = my_parts == 0
    for start in range(0, tl.maximum(my_parts, 1), STEP):
        piece = start + e
        ok = piece < tl.maximum(my_parts, 1)
        is_large = piece < my_large
        lo = tl.where(is_large, piece * large, my_large * large + (piece - my_large) * small)
        hi = tl.minimum(lo + tl.where(is_large, large, small), my_tiles)
        at = tl.where(is_large, large_at + piece, small_at + piece - my_large)
        lo = tl.where(is_whole, 0, lo)
        hi = tl.where(is_whole, my_tiles, hi)
        at = tl.where(is_whole, whole_at, at)
        out = PIECES + at * WIDTH
        tl.store(out, b + e * 0, mask=ok)
        tl.store(out + 1, row + e * 0, mask=ok)
        tl.store(out + 2, lo * TILE, mask=ok)
        tl.store(out + 3, tl.minimum(hi * TILE, my_tokens), mask=ok)
        tl.store(out + 4, tl.where(is_whole, -1, first + piece), mask=ok)
        for page in tl.static_range(PAGES):
            entry = tl.minimum(lo * TILE // BLOCK + page, table_width - 1)
            tl.store(out + IDS + page, tl.load(table + entry, mask=ok, other=0).to(tl.int32), mask=ok)
    if CUT > 0:
        tl.store(MERGES + i * 4, row)
        tl.store(MERGES + i * 4 + 1, first)
        tl.store(MERGES + i * 4 + 2, 1)
        tl.store(MERGES + i * 4 + 3, my_parts)
        used = all_large + all_small + tl.sum(whole.to(tl.int32), 0)
        for start in range(used + i, capacity, count * STEP):
            at = start + e * count
            tl.store(PIECES + at * WIDTH, e * 0 - 1, mask=at < capacity)


class DecodePlan:
    """Buffers of one configuration, filled by `update` and read by `paged_decode`; they stay where they are.

    pieces [capacity, 16] and merges [B, 4] int32 as the kernels document them; part_out [capacity, n_q, d] and part_lse
    [capacity, n_q] float32 are the scratch of cut sequences (one placeholder row where nothing is cut). Where the lengths
    are known, `counted` (`count_pieces`) makes grid and scratch as small as they need.
    """

    def __init__(
        self,
        config: DecodeConfig,
        batch: int,
        n_q: int,
        head_dim: int,
        device: torch.device,
        counted: tuple[int, int] | None = None,
    ) -> None:
        self.config = config
        self.grid, parts = counted or (config.capacity, config.capacity if config.cut is not Cut.WHOLE else 0)
        self.may_cut = parts > 0
        self.most_parts = config.capacity // batch if config.cut is Cut.EVEN else 16
        parts = max(parts, 1)
        self.pieces = torch.empty((config.capacity, ROW_WIDTH), dtype=torch.int32, device=device)
        self.merges = torch.empty((batch, 4), dtype=torch.int32, device=device)
        self.part_out = torch.empty((parts, n_q, head_dim), dtype=torch.float32, device=device)
        self.part_lse = torch.empty((parts, n_q), dtype=torch.float32, device=device)

    @property
    def num_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self.pieces, self.merges, self.part_out, self.part_lse))

    def update(self, batch: torch.Tensor, block_tables: torch.Tensor, block_size: int) -> None:
        """batch [3, B] int32 on the device: row of block_tables [rows, W], row of the query, length (0 allowed) of each."""
        count = batch.shape[1]
        plan_kernel[(count,)](
            batch, block_tables, self.pieces, self.merges, count, block_tables.stride(0), block_tables.shape[1],
            self.config.programs, self.config.capacity,
            CUT=int(self.config.cut), TILE=self.config.shape.tile, BLOCK=block_size, PAGES=self.config.pages, WIDTH=ROW_WIDTH,
            IDS=ROW_IDS, LANES=max(16, triton.next_power_of_2(count)), STEP=16, CHOICES=EVEN_CHOICES, num_warps=4,
        )  # fmt: skip
