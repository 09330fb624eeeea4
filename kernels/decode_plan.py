"""How a decode batch is cut into programs: the rule, in plain integers, with no GPU in it.

One program reads one KV head over one range of tokens of one sequence. All KV heads share the ranges, so the plan speaks of
ranges ("pieces") only. Lengths are counted in tiles, the tokens a program reads at a time.

    whole    one piece a sequence, nothing to merge: enough (sequence, KV head) pairs to fill the card, of about one length;
             or none longer than a merge is worth
    even     too few pairs: every sequence in equal pieces
    ragged   unequal lengths: large pieces first, then small ones that fill the tail, as the card's own scheduler hands
             them out in order (Hummel, Schonberg, Flynn: "Factoring", CACM 1992, with two sizes)

`plan_pieces` is the plain statement of the rule; `plan_kernel` in kernels/decode_launch.py computes the same on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class Cut(IntEnum):
    """How sequences are cut; see the module's docstring."""

    WHOLE = 0
    EVEN = 1
    RAGGED = 2


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What the rule needs to know of a card. Defaults: one H200."""

    sms: int = 132
    shared_per_program: int = 227 * 1024
    shared_per_sm: int = 228 * 1024
    hopper: bool = True  # has what kernels/hopper_prefill.py is built on


@dataclass(frozen=True, slots=True)
class Shape:
    """warps and tokens a tile of one program; `stages` - 1 tiles of K and V are in flight while one is computed."""

    warps: int
    tile: int
    stages: int

    def bytes_in_flight(self, head_dim: int, itemsize: int) -> int:
        """K and V on their way, which is also the shared memory that holds them."""
        return max(self.stages - 1, 1) * self.tile * head_dim * 2 * itemsize


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Everything about a decode launch that is fixed at compile or capture time; hashable, so that graphs can be kept by it.

    programs: pieces that run at once for one KV head. capacity: rows of the plan, and so the grid.
    """

    cut: Cut
    shape: Shape
    programs: int
    capacity: int
    pages: int  # page ids a tile, 0 where tiles and blocks do not divide


@dataclass(frozen=True, slots=True)
class Pieces:
    """rows: [n, 4] int64 of (sequence, lo, hi, part), tokens lo .. hi - 1, longest first; part -1: the whole sequence.

    merges: [B, 2] int64 of (first part, number of parts), 0 parts where nothing is to be merged.
    """

    rows: np.ndarray
    merges: np.ndarray


BYTES_PER_SM = 96 * 1024  # K and V in flight that saturate an H200's memory; 64 to 128 KiB is flat, twice is slower
RESIDENT = {64: 6, 128: 4, 256: 4}  # programs of a ragged batch whose registers an SM holds, by padded head_dim
SHORT_SHARE = 512  # tokens a program below which a ragged batch is cut finer
SHORT_TOKENS = 128  # the longest sequence that is never cut: a merge launch takes longer than four tiles in a row
SCRATCH_BYTES = 16 * 1024  # shared memory left for what the compiler exchanges between warps
EVEN_CHOICES = 256  # numbers of parts that are looked at
MAX_PAGES = 8  # page ids that travel through the loop as scalars


def padded(n: int) -> int:
    """The power of two from 16 up that holds n: the least a tensor-core product takes."""
    return max(16, 1 << (n - 1).bit_length())


def is_even(lens: np.ndarray) -> bool:
    """Lengths, but for rows of padding, within a tenth of each other on average."""
    return int(lens.max()) * int((lens > 0).sum()) <= 1.1 * int(lens.sum())


def decode_config(
    lens: np.ndarray, n_kv: int, head_dim: int, itemsize: int, block_size: int, limits: DeviceLimits
) -> DecodeConfig:
    """The documented rule from lengths [B], shapes and the card: no autotuning. Measured on an H200 (benchmarks/NOTES.md).

    What decides is the bytes of K and V in flight on the card. From 1.2 (sequence, KV head) pairs an SM (2.1 at head_dim 64)
    one program a pair is enough, and the fewer pairs the more each keeps in flight; with fewer pairs sequences are cut until
    96 KiB an SM are. Where no sequence is longer than SHORT_TOKENS none is cut, however little of the card they fill: a few
    tiles one after the other take less time than the launch that merges. The grid is kept close to what it must hold: the
    merge is launched early only once every program of it has started, and one that finds nothing to do still takes its turn.
    """
    dp, batch, even = padded(head_dim), len(lens), is_even(lens)
    per_sm = int((lens > 0).sum()) * n_kv / limits.sms
    small = Shape(1, 32, 3) if dp <= 64 else Shape(2, 32, 3) if dp <= 128 else Shape(4, 16, 3)
    fills, short = per_sm >= (2.1 if dp <= 64 else 1.2), int(lens.max()) <= SHORT_TOKENS
    if short or (even and fills):
        cut, shape = Cut.WHOLE, _whole_shape(dp, per_sm) if fills else small
    elif even:
        cut, shape = Cut.EVEN, small
    else:
        cut, shape = Cut.RAGGED, Shape(4, 64, 2) if dp <= 128 else Shape(4, 32, 2)
        if dp <= 64:
            few = int(lens.sum()) * n_kv < SHORT_SHARE * limits.sms * RESIDENT[64]
            shape = Shape(2, 32, 3) if few else Shape(2, 64, 3)
    shape = fit(shape, dp, itemsize, limits)
    if cut is Cut.RAGGED:
        fitting = limits.shared_per_sm // (shape.bytes_in_flight(dp, itemsize) + 1024)
        resident = max(1, min(RESIDENT[max(dp, 64)], fitting))
    else:
        resident = max(1, BYTES_PER_SM // shape.bytes_in_flight(dp, itemsize))
    programs = max(1, limits.sms * resident // n_kv)
    if cut is Cut.WHOLE:
        capacity = batch
    elif cut is Cut.EVEN:
        capacity = batch * max(1, -(-4 * programs // (3 * batch)))
    else:
        capacity = programs + programs // 4 + batch + min(batch, programs)
    return DecodeConfig(cut, shape, programs, capacity, pages_per_tile(shape.tile, block_size))


def pages_per_tile(tile: int, block_size: int) -> int:
    """Page ids one tile needs, where every tile starts a page or lies within one; else 0: ids are looked up token by token."""
    pages = tile // block_size if tile % block_size == 0 else int(block_size % tile == 0)
    return pages if pages <= MAX_PAGES else 0


def fit(shape: Shape, padded_dim: int, itemsize: int, limits: DeviceLimits) -> Shape:
    """Halves the tile until the stages fit in the card's shared memory (64 to 100 KB on smaller cards, fp32 anywhere)."""
    room = limits.shared_per_program - SCRATCH_BYTES
    while shape.tile > 16 and shape.bytes_in_flight(padded_dim, itemsize) > room:
        shape = Shape(shape.warps, shape.tile // 2, shape.stages)
    while shape.stages > 1 and shape.bytes_in_flight(padded_dim, itemsize) > room:
        shape = Shape(shape.warps, shape.tile, shape.stages - 1)
    return shape


def count_pieces(lens: np.ndarray, config: DecodeConfig) -> tuple[int, int]:
    """(pieces, parts among them) of a batch of lengths [B], without listing them: the host's share of a plan."""
    tiles = -(-lens.astype(np.int64) // config.shape.tile)
    n_parts = _parts(tiles, config)[1]
    return int(np.maximum(n_parts, 1).sum()), int(n_parts.sum())


def plan_pieces(lens: list[int] | np.ndarray, config: DecodeConfig) -> Pieces:
    """The pieces of a batch of lengths [B] under a configuration. Never more than `config.capacity`."""
    tokens = np.asarray(lens, dtype=np.int64)
    tiles = -(-tokens // config.shape.tile)
    large, small, _ = piece_sizes(tiles, config)
    n_large, n_parts = _parts(tiles, config)
    first = np.cumsum(n_parts) - n_parts
    pieces: list[tuple[int, int, int, int, int, int]] = []
    for b, count in enumerate(n_parts.tolist()):
        size = int(tiles[b])
        if count == 0:
            kind = 0 if size > large else 2 if size > small else 4
            pieces.append((kind, -size, b, 0, size, -1))
        for part in range(count):
            is_large = part < n_large[b]
            lo = part * large if is_large else int(n_large[b]) * large + (part - int(n_large[b])) * small
            hi = min(lo + (large if is_large else small), size)
            pieces.append((1 if is_large else 3, 0, b, lo, hi, int(first[b]) + part))
    pieces.sort(key=lambda piece: piece[:2])  # stable: within a kind, in the sequences' order
    rows = [(b, lo * config.shape.tile, min(hi * config.shape.tile, int(tokens[b])), part) for _, _, b, lo, hi, part in pieces]
    return Pieces(np.array(rows, dtype=np.int64).reshape(-1, 4), np.stack((first, n_parts), axis=1))


def piece_sizes(tiles: np.ndarray, config: DecodeConfig) -> tuple[int, int, int]:
    """(large, small, limit) in tiles: a sequence over the limit is cut in large pieces, and what is left in small ones."""
    total, longest, batch = int(tiles.sum()), int(tiles.max()), len(tiles)
    if config.cut is Cut.WHOLE:
        return max(longest, 1), max(longest, 1), longest
    if config.cut is Cut.EVEN:
        size = max(1, -(-longest // _even_parts(longest, batch, config)))
        return size, size, size
    large = max(1, -(-85 * total // (100 * config.programs)))
    small = max(1, (total + 4 * config.programs) // (8 * config.programs))
    limit = max(large, total // config.programs)
    cut = tiles > limit
    rest = int((tiles % large)[cut].sum())
    room = config.capacity - int((tiles // large)[cut].sum()) - batch  # one small piece a cut sequence may be a short one
    return large, max(small, -(-rest // max(room, 1))), limit


def _parts(tiles: np.ndarray, config: DecodeConfig) -> tuple[np.ndarray, np.ndarray]:
    """[B] each: large pieces, and pieces, of sequences that are cut; 0 of one that is not."""
    large, small, limit = piece_sizes(tiles, config)
    cut = tiles > limit
    n_large = np.where(cut, tiles // large, 0)
    return n_large, n_large + np.where(cut, -(-(tiles - n_large * large) // small), 0)


def _even_parts(longest: int, batch: int, config: DecodeConfig) -> int:
    """Parts a sequence: between 2/3 and 4/3 of what fills the card, whichever number divides the tiles best.

    All parts run at once and share the memory's bandwidth evenly, so equal parts end together and a short one gains nothing.
    """
    most = max(min(config.capacity // batch, longest), 1)
    least = max(min(2 * config.programs // (3 * batch), most), 1)
    step = -(-(most - least + 1) // EVEN_CHOICES)
    wanted = config.programs // batch
    return min(
        range(least, most + 1, step), key=lambda parts: (-(-longest // parts) * parts, min(abs(parts - wanted), 4095), -parts)
    )


def _whole_shape(padded_dim: int, pairs_per_sm: float) -> Shape:
    if padded_dim <= 64:
        return Shape(1, 32, 3) if pairs_per_sm >= 5 else Shape(2, 64, 3)
    if padded_dim <= 128:
        return Shape(4, 64, 2) if pairs_per_sm >= 3 else Shape(4, 64, 3)
    return Shape(4, 32, 2) if pairs_per_sm >= 3 else Shape(4, 32, 3)
