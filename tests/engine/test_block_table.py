"""Positions to slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.block_table import BlockTable


def test_two_blocks_of_eight_give_sixteen_distinct_slots():  # P01
    slots = BlockTable(8, [5, 2]).slots(0, 16)
    assert slots == [*range(40, 48), *range(16, 24)]
    assert len(set(slots)) == 16


def test_token_4_of_table_7_2_is_at_slot_8():  # P26
    assert BlockTable(4, [7, 2]).slot(4) == 8


def test_the_worked_lookup_finds_token_20_at_slot_36():
    assert BlockTable(16, [7, 2, 15]).slot(20) == 36


@given(st.integers(1, 16), st.lists(st.integers(0, 99), max_size=6, unique=True), st.integers(0, 100), st.integers(0, 100))
def test_a_range_of_slots_is_each_positions_slot(block_size, block_ids, start, stop):
    table = BlockTable(block_size, block_ids)
    if start < stop and stop > table.capacity:
        with pytest.raises(IndexError, match=f"the table maps {table.capacity} positions"):
            table.slots(start, stop)
    else:
        assert table.slots(start, stop) == [
            block_ids[p // block_size] * block_size + p % block_size for p in range(start, stop)
        ]


@pytest.mark.parametrize("position", [-1, 8, 100])
def test_a_position_beyond_the_table_has_no_slot(position):
    with pytest.raises(IndexError, match=f"Position {position} has no slot: the table maps 8 positions"):
        BlockTable(4, [0, 1]).slot(position)


def test_a_negative_range_has_no_slots():
    with pytest.raises(IndexError):
        BlockTable(4, [0, 1]).slots(-2, 3)


def test_a_table_grows_at_its_end_and_gives_everything_back_in_order():
    table = BlockTable(4)
    for block_id in (9, 3, 6):
        table.append(block_id)
    assert (len(table), table.capacity, table[1]) == (3, 12, 3)
    assert table.clear() == [9, 3, 6]
    assert (len(table), table.capacity) == (0, 0)


def test_a_table_does_not_share_the_list_it_was_made_from():
    block_ids = [1, 2]
    BlockTable(4, block_ids).append(3)
    assert block_ids == [1, 2]


def test_a_replaced_block_moves_its_positions_and_no_others():
    table = BlockTable(4, [7, 2])
    assert table.replace(1, 9) == 2
    assert (table.slots(0, 4), table.slots(4, 8)) == ([28, 29, 30, 31], [36, 37, 38, 39])
