"""How chunks of query rows are cut into programs: the rule, in plain integers, with no GPU in it.

One program takes one KV head and a block of consecutive rows of one sequence, each with its group of query heads: at
BLOCK_M 128 and groups of 3 that is 42 rows. It reads the positions its last row sees. Blocks that read most start first; if
there are too few of them for the card, each is cut over its context too, and the parts are merged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.decode_plan import SCRATCH_BYTES, DeviceLimits, padded, pages_per_tile

MIN_TILES = 8  # a part of a cut block reads at least this many tiles: what merging costs must be small beside it
BARRIER_BYTES = 1024  # shared memory that kernels/hopper_prefill.py needs besides Q, K and V
WORTH_CUTTING = 0.9  # of the time, or less: parts have to be merged
LONG = 2048  # from this context on, larger tiles multiply more than what lies past the diagonal costs


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """block_m rows (query row and head of the group together), `tile` tokens a step; programs: how many run at once.

    resident: how many programs kernels/hopper_prefill.py starts, which stay and take block after block; 0: the kernel is
    kernels/paged_prefill.py, with a program a block.
    """

    block_m: int
    tile: int
    warps: int
    stages: int
    programs: int
    pages: int
    resident: int = 0


@dataclass(frozen=True, slots=True)
class PrefillPieces:
    """rows: [n, 8] int32 of (sequence, first query row, number of rows, position of the first, lo, hi, first part, 0),
    in launch order; first part -1: not cut. Row r of a cut block has its share in part first + r.

    merges: [m, 4] int32, one a row of a cut block: query row, first part, distance between parts, number of parts.
    parts: rows of scratch. most_parts: the largest number of parts.
    """

    rows: np.ndarray
    merges: np.ndarray
    parts: int
    most_parts: int


def prefill_config(
    longest: int,
    context: int,
    group: int,
    n_kv: int,
    head_dim: int,
    itemsize: int,
    block_size: int,
    limits: DeviceLimits,
    in_boxes: bool = True,
) -> PrefillConfig:
    """The rule: as many rows as a warpgroup or two multiply at once, but no more than the longest chunk has.

    longest: rows of the longest chunk; context: of the longest sequence. On Hopper two warpgroups' rows of a head_dim past 64
    go to a kernel of their own, if the copy engine can fetch the pools in boxes (`in_boxes`, `loads_in_boxes`).
    Measured on an H200 (benchmarks/NOTES.md).
    """
    dp, rows = padded(head_dim), longest * group
    # one warpgroup of 64 rows leaves room for other programs beside it, which a head_dim of 64 gains most from
    block_m = 16 if rows <= 16 else 64 if rows <= 64 or dp <= 64 else 128
    block_m = max(block_m, padded(group))
    warps = 8 if block_m == 128 else 4
    tile, stages = (64, 3) if dp <= 128 else (32, 2)
    if itemsize == 4:  # no tensor cores in full fp32: smaller tiles keep the sums in registers
        block_m, tile, warps, stages = max(min(block_m, 64), padded(group)), 32, 4, 2
    room = limits.shared_per_program - SCRATCH_BYTES
    while stages > 1 and _shared(block_m, tile, stages, dp, itemsize) > room:
        stages -= 1
    while tile > 16 and _shared(block_m, tile, stages, dp, itemsize) > room:
        tile //= 2
    while block_m > padded(group) and _shared(block_m, tile, stages, dp, itemsize) > room:
        block_m //= 2
    per_sm = 1 if dp >= 128 else 2
    on_hopper = 64 if context < LONG else 128
    if limits.hopper and in_boxes and block_m == dp == 128 and itemsize == 2 and loads_in_boxes(on_hopper, block_size):
        stages = (limits.shared_per_program - BARRIER_BYTES - _shared(block_m, 0, 0, dp, 2)) // _shared(0, on_hopper, 1, dp, 2)
        return PrefillConfig(128, on_hopper, 12, stages, max(1, limits.sms // n_kv), 0, limits.sms)
    return PrefillConfig(block_m, tile, warps, stages, max(1, limits.sms * per_sm // n_kv), pages_per_tile(tile, block_size))


def plan_blocks(
    sequences: list[int], query_start: list[int], context_lens: list[int], group: int, config: PrefillConfig
) -> PrefillPieces:
    """The blocks of the named sequences of a batch, the ones that read most first, cut over the context if they are few."""
    per_block = config.block_m // group
    blocks: list[np.ndarray] = []
    for b in sequences:
        start, length, context = query_start[b], query_start[b + 1] - query_start[b], context_lens[b]
        first = np.arange(0, length, per_block, dtype=np.int64)
        rows = np.minimum(per_block, length - first)
        position = context - length + first
        seen = np.clip(position + rows, 0, context)
        blocks.append(np.stack((np.full_like(first, b), start + first, rows, position, seen), axis=1))
    table = np.concatenate(blocks) if blocks else np.zeros((0, 5), dtype=np.int64)
    tiles = -(-table[:, 4] // config.tile)
    counts, each = _parts(tiles, _longest_part(tiles, config))
    space = np.where(counts > 1, counts * table[:, 2], 0)
    base = np.cumsum(space) - space
    block = np.repeat(np.arange(len(table)), counts)
    index = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
    lo = index * each[block] * config.tile
    hi = np.minimum(lo + each[block] * config.tile, table[block, 4])
    part = np.where(counts[block] > 1, base[block] + index * table[block, 2], -1)
    rows = np.concatenate((table[block, :4], np.stack((lo, hi, part, part * 0), axis=1)), axis=1)
    rows = rows[np.argsort(lo - hi, kind="stable")]
    cut = np.flatnonzero(counts > 1)
    merges = [
        np.stack(
            (table[c, 1] + r, base[c] + r, np.full_like(r, table[c, 2]), np.full_like(r, counts[c])),
            axis=1,
        )
        for c in cut
        for r in (np.arange(table[c, 2]),)
    ]
    joined = np.concatenate(merges) if merges else np.zeros((0, 4), dtype=np.int64)
    return PrefillPieces(rows.astype(np.int32), joined.astype(np.int32), int(space.sum()), int(counts.max(initial=1)))


def _parts(tiles: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Equal parts of blocks of `tiles`, of at most `longest`: how many, and tiles of each."""
    counts = np.maximum(1, -(-tiles // max(longest, 1)))
    each = -(-tiles // counts)
    return np.maximum(1, -(-tiles // np.maximum(each, 1))), each


def _longest_part(tiles: np.ndarray, config: PrefillConfig) -> int:
    """Tiles that a part may have. Few blocks: so that all programs have one. Else whole blocks, but where the last round of
    programs that stay would find most of them idle: what lets the slowest one end first."""
    least = MIN_TILES if config.tile <= 64 else MIN_TILES // 2
    total, whole = int(tiles.sum()), int(tiles.max(initial=1))
    if len(tiles) < config.programs:
        return max(least, -(-total // config.programs))
    if not config.resident:
        return whole
    smaller = (-(-total // (config.programs * rounds)) for rounds in (2, 3, 4))
    choices = [whole, *(part for part in smaller if 2 * least <= part < whole)]
    slowest = {part: _slowest(tiles, part, config) for part in choices}
    best = min(choices, key=lambda part: slowest[part])
    return best if slowest[best] < WORTH_CUTTING * slowest[whole] else whole


def _slowest(tiles: np.ndarray, longest: int, config: PrefillConfig) -> int:
    """Tiles of the program that has most, as kernels/hopper_prefill.py deals parts out: in falling order, to and fro."""
    counts, each = _parts(tiles, longest)
    heads = config.resident // config.programs
    sizes = np.repeat(np.sort(np.repeat(each, counts))[::-1], heads)
    rounds = np.pad(sizes, (0, -len(sizes) % config.resident)).reshape(-1, config.resident)
    rounds[1::2] = rounds[1::2, ::-1]
    return int(rounds.sum(axis=0).max())


def loads_in_boxes(tile: int, block_size: int) -> bool:
    """Whether a tile is a number of boxes, each within one page and of whole rows of shared memory's swizzle, which has 8."""
    box = min(tile, block_size)
    return box % 8 == 0 and tile % box == 0 and block_size % box == 0


def _shared(block_m: int, tile: int, stages: int, padded_dim: int, itemsize: int) -> int:
    return (block_m + 2 * stages * tile) * padded_dim * itemsize
