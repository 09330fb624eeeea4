"""What the attention kernels are about to do for a batch, said in plain integers: every program, what it reads, who merges.

A pure function of the batch's numbers: no tensors, no GPU. The kernels are launched by the very same rules
(kernels/decode_plan.py, kernels/prefill_plan.py), and a test holds this account to what the interpreter really loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kernels.decode_plan import DeviceLimits, decode_config, plan_pieces
from kernels.prefill_plan import plan_blocks, prefill_config


@dataclass(frozen=True, slots=True)
class Tile:
    """Positions start .. stop - 1, read at once, and the physical blocks that hold them, in order."""

    start: int
    stop: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """One program: one KV head, some rows of one sequence, one range of its context, tile by tile.

    index: its place in launch order. rows: rows of the packed batch. part: which of `parts` ranges of the context it has.
    bytes_read: K and V. On Hopper a prefill program is one turn of one that stays, and takes its tiles from the last down.
    """

    kernel: str  # "decode" or "prefill"
    index: int
    sequence: int
    kv_head: int
    rows: range
    part: int
    parts: int
    tiles: tuple[Tile, ...]
    bytes_read: int


@dataclass(frozen=True, slots=True)
class Merge:
    """The parts of one row of the batch, joined by one program a query head once all of them are done."""

    sequence: int
    row: int
    parts: int


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    programs: tuple[Program, ...]
    merges: tuple[Merge, ...]

    @property
    def bytes_read(self) -> int:
        return sum(program.bytes_read for program in self.programs)

    def merged_by(self, program: Program) -> tuple[Merge, ...]:
        """The merges that wait for this program; none if it writes its rows of the output itself."""
        return tuple(merge for merge in self.merges if merge.row in program.rows)


def split_sequences(query_start: Sequence[int]) -> tuple[list[int], list[int]]:
    """(sequences of one row, which the decode kernel takes; sequences of more, which the prefill kernel takes)."""
    lengths = [stop - start for start, stop in pairwise(query_start)]
    return [b for b, n in enumerate(lengths) if n == 1], [b for b, n in enumerate(lengths) if n > 1]


def launch_plan(
    block_size: int,
    block_tables: Sequence[Sequence[int]],
    query_start: Sequence[int],
    context_lens: Sequence[int],
    n_q: int,
    n_kv: int,
    head_dim: int,
    itemsize: int,
    limits: DeviceLimits | None = None,
) -> LaunchPlan:
    """The launches of one layer for a batch as in AttentionMetadata; itemsize: bytes of one number; limits: of the card.

    Raises ValueError if query heads cannot share the KV heads.
    """
    if n_kv < 1 or n_q % n_kv:
        raise ValueError(f"{n_q} query heads cannot share {n_kv} KV heads: the first must be a multiple of the second.")
    limits = limits or DeviceLimits()
    programs: list[Program] = []
    merges: list[Merge] = []

    def add(kernel: str, tile: int, ranges: list[tuple[int, range, int, int]]) -> None:
        """Programs and merges of one launch from its (sequence, rows, lo, hi), in order."""
        cuts: dict[int, list[int]] = {}
        for _, rows, lo, _ in ranges:
            cuts.setdefault(rows.start, []).append(lo)
        for b, rows, lo, hi in ranges:
            tiles = tuple(
                Tile(start, stop, tuple(block_tables[b][start // block_size : -(-stop // block_size)]))
                for start in range(lo, hi, tile)
                for stop in (min(start + tile, hi),)
            )
            starts = sorted(cuts[rows.start])
            size = (hi - lo) * head_dim * 2 * itemsize
            for head in range(n_kv):
                part = starts.index(lo)
                programs.append(Program(kernel, len(programs), b, head, rows, part, len(starts), tiles, size))
        rows_of = {rows.start: (b, rows) for b, rows, _, _ in ranges}
        for first, starts in sorted(cuts.items()):
            if len(starts) > 1:
                b, rows = rows_of[first]
                merges.extend(Merge(b, row, len(starts)) for row in rows)

    single, chunks = split_sequences(query_start)
    if single:
        lens = np.array([context_lens[b] for b in single], dtype=np.int64)
        config = decode_config(lens, n_kv, head_dim, itemsize, block_size, limits)
        pieces = plan_pieces(lens, config).rows.tolist()
        rows = [range(query_start[b], query_start[b] + 1) for b in single]
        add("decode", config.shape.tile, [(single[i], rows[i], lo, hi) for i, lo, hi, _ in pieces])
    if chunks:
        longest = max(query_start[b + 1] - query_start[b] for b in chunks)
        group = n_q // n_kv
        context = max(context_lens[b] for b in chunks)
        chunk_config = prefill_config(longest, context, group, n_kv, head_dim, itemsize, block_size, limits)
        blocks = plan_blocks(chunks, list(query_start), list(context_lens), group, chunk_config).rows.tolist()
        ranges = [(b, range(row, row + num), lo, hi) for b, row, num, _, lo, hi, _, _ in blocks]
        add("prefill", chunk_config.tile, ranges)
    return LaunchPlan(tuple(programs), tuple(merges))
