"""How batches are cut into programs: nothing read twice, nothing left out, long pieces first, within the grid."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.decode_plan import Cut, DecodeConfig, DeviceLimits, Shape, count_pieces, decode_config, plan_pieces
from kernels.prefill_plan import plan_blocks, prefill_config
from tests.kernels.plan_cases import assert_the_device_plans_as_the_rule_says

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

SMALL_CARD = DeviceLimits(sms=20, shared_per_program=64 * 1024, shared_per_sm=64 * 1024)


def drawn(seed: int) -> tuple[list[int], DecodeConfig]:
    rng = random.Random(seed)
    count, top = rng.choice([1, 2, 8, 64, 200]), rng.choice([10, 300, 4000, 20000])
    lens = [top] * count if seed % 3 == 0 else [int(2 ** rng.uniform(0, 14)) - 1 for _ in range(count)]
    limits = rng.choice([DeviceLimits(), SMALL_CARD, DeviceLimits(sms=1)])
    kept_for = lens if seed % 2 else rng.choice([[top] * count, [top, *[1] * (count - 1)]])  # a graph may meet the other kind
    return lens, decode_config(np.array(kept_for), rng.choice([1, 3, 8]), rng.choice([64, 128, 256]), 2, 16, limits)


@pytest.mark.parametrize("seed", range(60))
def test_every_position_is_read_once_and_the_grid_is_large_enough(seed):
    lens, config = drawn(seed)
    pieces = plan_pieces(lens, config)
    assert len(pieces.rows) <= config.capacity
    assert count_pieces(np.array(lens), config) == (len(pieces.rows), int(pieces.merges[:, 1].sum()))
    for b, length in enumerate(lens):
        mine = sorted((lo, hi) for row, lo, hi, _ in pieces.rows.tolist() if row == b)
        assert [lo for lo, _ in mine] == [0, *(hi for _, hi in mine[:-1])]
        assert mine[-1][1] == length
        assert all(lo % config.shape.tile == 0 for lo, _ in mine)
        parts = sorted(part for row, _, _, part in pieces.rows.tolist() if row == b)
        first, count = pieces.merges[b].tolist()
        assert parts == (list(range(first, first + count)) if len(mine) > 1 else [-1])
        assert count == (len(mine) if len(mine) > 1 else 0)
    used = [part for part in pieces.rows[:, 3].tolist() if part >= 0]
    assert len(set(used)) == len(used)
    assert max(used, default=0) < config.capacity


def test_pieces_of_unequal_lengths_start_longest_first():
    rng = random.Random(1)
    lens = [rng.randint(64, 16384) for _ in range(64)]
    config = decode_config(np.array(lens), 8, 128, 2, 16, DeviceLimits())
    sizes = -(-np.diff(plan_pieces(lens, config).rows[:, 1:3])[:, 0] // config.shape.tile)
    share = sum(lens) / config.shape.tile / config.programs
    large = sizes[sizes > share / 4]
    assert (np.diff(large) <= 0).all()
    assert (sizes[len(large) :] <= share / 4).all()
    assert sizes[0] <= 1.1 * share  # no piece is much longer than the share of one program


def test_equal_sequences_are_cut_where_their_tiles_divide():
    config = decode_config(np.full(8, 4096), 8, 128, 2, 16, DeviceLimits())
    rows = plan_pieces([4096] * 8, config).rows
    assert set((rows[:, 2] - rows[:, 1]).tolist()) == {512}


def test_enough_equal_sequences_are_not_cut():
    config = decode_config(np.full(64, 4096), 8, 128, 2, 16, DeviceLimits())
    assert (config.cut, config.capacity) == (Cut.WHOLE, 64)
    assert (plan_pieces([4096] * 64, config).rows[:, 3] == -1).all()


def test_one_long_sequence_fills_the_card_with_equal_parts():
    config = decode_config(np.array([131072]), 8, 128, 2, 16, DeviceLimits())
    rows = plan_pieces([131072], config).rows
    assert 0.66 <= len(rows) / config.programs <= 1.34
    assert np.ptp(rows[:, 2] - rows[:, 1]) <= 0.1 * rows[0, 2]


def test_padding_rows_do_not_make_a_batch_ragged():
    lens = np.array([500] * 60 + [0] * 4)
    assert decode_config(lens, 8, 128, 2, 16, DeviceLimits()).cut is Cut.WHOLE
    assert decode_config(np.array([500] * 2 + [0] * 2), 8, 128, 2, 16, DeviceLimits()).cut is Cut.EVEN


SHORT = [[128], [1], [128, 3, 0, 77], [0, 0], [100] * 64, [*range(1, 65)]]


@pytest.mark.parametrize("lens", SHORT)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_short_sequences_are_not_cut_however_few_and_unequal(lens, head_dim):
    config = decode_config(np.array(lens), 8, head_dim, 2, 16, DeviceLimits())
    assert (config.cut, config.capacity) == (Cut.WHOLE, len(lens))
    assert count_pieces(np.array(lens), config) == (len(lens), 0)
    one_more = decode_config(np.array([*lens, 129]), 8, head_dim, 2, 16, DeviceLimits())
    assert one_more.cut is not Cut.WHOLE


def test_one_short_sequence_is_read_in_four_small_tiles():
    assert decode_config(np.array([128]), 8, 128, 2, 16, DeviceLimits()).shape == Shape(2, 32, 3)


def test_the_rule_reads_the_card():
    large, small = (decode_config(np.full(64, 4096), 8, 128, 2, 16, limits) for limits in (DeviceLimits(), SMALL_CARD))
    assert large.shape == Shape(4, 64, 2)
    assert small.shape.bytes_in_flight(128, 2) <= 48 * 1024
    fp32 = decode_config(np.arange(64), 1, 256, 4, 16, SMALL_CARD)
    assert fp32.shape.bytes_in_flight(256, 4) <= 48 * 1024


@pytest.mark.parametrize(
    "block_size, tile, pages", [(16, 64, 4), (64, 64, 1), (128, 64, 1), (1, 64, 0), (5, 64, 0), (8, 128, 0)]
)
def test_page_ids_travel_as_scalars_where_tiles_and_blocks_divide(block_size, tile, pages):
    from kernels.decode_plan import pages_per_tile

    assert pages_per_tile(tile, block_size) == pages


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("seed", [1, 2, 5, 7, 12, 13])
def test_the_device_plans_as_the_rule_says(seed):
    rng = random.Random(seed)
    lens = drawn(seed)[0][:20]
    kept_for = np.array(lens) if seed % 2 else np.full(len(lens), 700)
    config = decode_config(kept_for, rng.choice([2, 8]), 64, 2, 16, DeviceLimits(sms=12))
    assert_the_device_plans_as_the_rule_says(lens, config, torch.device("cpu"))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("lens", SHORT[:4])
def test_the_device_does_not_cut_short_sequences_either(lens):
    config = decode_config(np.array(lens), 2, 64, 2, 16, DeviceLimits())
    assert_the_device_plans_as_the_rule_says(lens, config, torch.device("cpu"))


@pytest.mark.parametrize("seed", range(40))
def test_every_row_of_a_chunk_is_in_one_block_and_reads_all_it_sees(seed):
    rng = random.Random(seed)
    num, group = rng.randint(1, 6), rng.choice([1, 3, 4, 7, 16])
    lengths = [rng.choice([2, 5, 130, 700]) for _ in range(num)]
    context = [n + rng.choice([0, 3, 5000]) for n in lengths]
    starts = [0, *np.cumsum(lengths).tolist()]
    config = prefill_config(
        max(lengths), max(context), group, 2, rng.choice([64, 128]), 2, 16, rng.choice([DeviceLimits(), SMALL_CARD])
    )
    plan = plan_blocks(list(range(num)), starts, context, group, config)
    seen: dict[int, int] = {}
    for b, row, rows, position, lo, hi, _, _ in plan.rows.tolist():
        assert rows * group <= config.block_m
        assert position == context[b] - lengths[b] + row - starts[b]
        for r in range(row, row + rows):
            seen[r] = seen.get(r, 0) + max(0, min(hi, position + r - row + 1) - lo)
    for b in range(num):
        for r in range(lengths[b]):
            assert seen[starts[b] + r] == context[b] - lengths[b] + r + 1
    assert plan.parts == sum(count for *_, count in plan.merges.tolist())
    assert plan.most_parts >= plan.merges[:, 3].max(initial=1)


def test_blocks_that_read_most_start_first():
    config = prefill_config(2048, 2048, 4, 8, 128, 2, 16, DeviceLimits())
    rows = plan_blocks([0], [0, 2048], [2048], 4, config).rows
    assert (np.diff(rows[:, 5] - rows[:, 4]) <= 0).all()


@pytest.mark.parametrize(
    "longest, context, head_dim, itemsize, block_size, limits, in_boxes, tile",
    [
        (512, 16896, 128, 2, 16, DeviceLimits(), True, 128),
        (1024, 1024, 128, 2, 16, DeviceLimits(), True, 64),  # half of a large tile would lie past the diagonal
        (512, 16896, 96, 2, 8, DeviceLimits(), True, 128),
        (512, 16896, 128, 2, 256, DeviceLimits(), True, 128),
        (512, 16896, 128, 2, 12, DeviceLimits(), True, 0),
        (512, 16896, 128, 2, 192, DeviceLimits(), True, 0),
        (512, 16896, 64, 2, 16, DeviceLimits(), True, 0),
        (512, 16896, 256, 2, 16, DeviceLimits(), True, 0),
        (512, 16896, 128, 4, 16, DeviceLimits(), True, 0),
        (16, 16896, 128, 2, 16, DeviceLimits(), True, 0),  # no more rows than one warpgroup's
        (512, 16896, 128, 2, 16, DeviceLimits(hopper=False), True, 0),
        (512, 16896, 128, 2, 16, DeviceLimits(), False, 0),
    ],
)
def test_what_the_kernel_for_hopper_takes(longest, context, head_dim, itemsize, block_size, limits, in_boxes, tile):
    config = prefill_config(longest, context, 4, 8, head_dim, itemsize, block_size, limits, in_boxes)
    assert (config.resident, config.tile if config.resident else 0) == (132 if tile else 0, tile)
    if tile:
        rows_and_tiles = (config.block_m + 2 * config.stages * config.tile) * 128 * 2
        assert config.block_m == 128 and config.stages == 384 // tile
        assert rows_and_tiles + 1024 <= limits.shared_per_program


@pytest.mark.parametrize("rows, parts", [(512, 1), (700, 3), (1024, 1)])
def test_blocks_that_fill_the_card_once_and_a_little_are_cut_so_that_no_program_waits_long(rows, parts):
    context = 16384 + rows  # 128, 176 and 256 (block, KV head) pairs for 132 programs that stay
    config = prefill_config(rows, context, 4, 8, 128, 2, 16, DeviceLimits())
    plan = plan_blocks([0], [0, rows], [context], 4, config)
    work = np.repeat(plan.rows[:, 5] - plan.rows[:, 4], 8)
    programs = [0] * 132
    for w, size in enumerate(work.tolist()):  # as kernels/hopper_prefill.py takes turns
        programs[w % 132 if w // 132 % 2 == 0 else 131 - w % 132] += size
    assert plan.most_parts == parts
    assert max(programs) * 132 <= 1.1 * work.sum()


def test_a_small_chunk_after_a_long_context_is_cut_over_the_context():
    config = prefill_config(64, 32768 + 64, 4, 8, 128, 2, 16, DeviceLimits())
    plan = plan_blocks([0], [0, 64], [32768 + 64], 4, config)
    assert plan.most_parts > 4
    assert len(plan.rows) <= 2 * config.programs
    assert len(plan_blocks([0], [0, 64], [32768 + 64], 4, replace(config, programs=1)).merges) == 0
