"""The block pool: exact free-queue orders, atomic moves, and hits that rest on tokens and parents, never on a hash alone."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from engine import block_pool
from engine.block_pool import BlockPool, hash_block
from engine.errors import BlockPoolError
from tests.engine.helpers import PlainPool


def test_a_fresh_pool_hands_out_its_blocks_in_ascending_order():
    assert BlockPool(4).allocate(3) == [0, 1, 2]


def test_a_shuffled_pool_depends_on_the_seed_alone_and_still_has_every_block_once():
    orders = [BlockPool(64, "shuffled", seed).free_block_ids() for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(64)) != orders[0]


def test_allocate_takes_all_or_none():
    pool = BlockPool(4)
    pool.allocate(2)
    with pytest.raises(BlockPoolError, match=r"3 blocks are needed and 2 of 4 are free\."):
        pool.allocate(3)
    assert pool.free_block_ids() == [2, 3]
    assert pool.ref_cnt == [1, 1, 0, 0]


def test_freed_blocks_go_to_the_end_of_the_queue_in_the_order_given():
    pool = BlockPool(5)
    table = pool.allocate(3)
    pool.free(table[::-1])
    assert pool.free_block_ids() == [3, 4, 2, 1, 0]


def test_freeing_a_table_twice_raises_and_changes_nothing():  # P16
    pool = BlockPool(8)
    pool.allocate(6)
    pool.free([3, 5])
    queue, counts = pool.free_block_ids(), list(pool.ref_cnt)
    with pytest.raises(BlockPoolError, match=r"Block 3 is free already; it cannot be freed again\."):
        pool.free([3, 5])
    assert (pool.free_block_ids(), pool.ref_cnt) == (queue, counts)
    taken = pool.allocate(3)
    assert len(set(taken)) == 3


def test_a_free_that_goes_wrong_half_way_changes_nothing():
    pool = BlockPool(4)
    pool.allocate(2)
    for wrong in ([0, 3], [0, 0], [1, 0, 1]):
        with pytest.raises(BlockPoolError):
            pool.free(wrong)
    assert pool.ref_cnt == [1, 1, 0, 0]
    assert pool.free_block_ids() == [2, 3]


def test_a_shared_block_is_free_only_after_its_last_holder_let_go():
    pool = BlockPool(2)
    (block_id,) = pool.allocate(1)
    pool.touch([block_id])
    assert pool.ref_cnt[block_id] == 2
    pool.free([block_id])
    assert pool.free_block_ids() == [1]
    pool.free([block_id])
    assert pool.free_block_ids() == [1, 0]


def test_a_hit_takes_a_free_block_out_of_the_middle_of_the_queue():
    pool = BlockPool(5)
    pool.free(pool.allocate(5))
    pool.touch([2])
    assert pool.free_block_ids() == [0, 1, 3, 4]
    assert pool.num_free_among([2, 3, 4]) == 2


def test_a_freed_block_is_found_until_it_is_reused():
    removed: list[tuple[int, str]] = []
    pool = BlockPool(2, on_removed=lambda *what: removed.append(what))
    (block_id,) = pool.allocate(1)
    content = pool.store(block_id, None, [1, 2])
    pool.free([block_id])
    assert pool.cached_block(None, [1, 2]) == block_id
    assert pool.cached_blocks() == [block_id]
    pool.allocate(1)  # the other block comes first: it was freed longer ago
    assert pool.cached_block(None, [1, 2]) == block_id
    assert removed == []
    pool.allocate(1)
    assert pool.cached_block(None, [1, 2]) is None
    assert removed == [(block_id, content.block_hash)]
    assert pool.hash_index() == {}


def test_a_reused_block_is_not_hit_for_what_it_held_before():  # E11
    pool = BlockPool(1)
    pool.allocate(1)
    pool.store(0, None, [1, 2])
    pool.free([0])
    pool.allocate(1)
    pool.store(0, None, [3, 4])
    pool.free([0])
    assert pool.cached_block(None, [1, 2]) is None
    assert pool.cached_block(None, [3, 4]) == 0


def test_the_tail_of_a_sequence_is_evicted_before_its_head():  # E17
    pool = BlockPool(3)
    table = pool.allocate(3)
    contents = [pool.store(table[0], None, [0])]
    for index in (1, 2):
        contents.append(pool.store(table[index], contents[-1], [index]))
    pool.free(table[::-1])
    evicted = [pool.allocate(1)[0] for _ in range(3)]
    assert evicted == [table[2], table[1], table[0]]


def test_a_failed_allocation_and_a_lookup_do_not_reorder_the_queue():  # E17
    pool = BlockPool(4)
    pool.free(pool.allocate(4)[::-1])
    pool.store(2, None, [9])
    queue = pool.free_block_ids()
    assert pool.cached_block(None, [9]) == 2
    assert pool.cached_block(None, [8]) is None
    with pytest.raises(BlockPoolError):
        pool.allocate(5)
    assert pool.free_block_ids() == queue == [3, 2, 1, 0]


def test_the_same_tokens_after_another_beginning_are_no_hit():
    pool = BlockPool(4)
    table = pool.allocate(4)
    first, other = pool.store(table[0], None, [1]), pool.store(table[1], None, [2])
    pool.store(table[2], first, [5])
    assert pool.cached_block(first, [5]) == table[2]
    assert pool.cached_block(other, [5]) is None
    assert pool.cached_block(None, [5]) is None


def test_equal_hashes_of_other_tokens_or_parents_are_no_hit(monkeypatch):
    monkeypatch.setattr(block_pool, "hash_block", lambda parent_hash, tokens: "collision")
    pool = BlockPool(4)
    table = pool.allocate(4)
    first, other = pool.store(table[0], None, [1]), pool.store(table[1], None, [2])
    pool.store(table[2], first, [5])
    assert first is not other
    assert pool.cached_block(None, [1]) == table[0]
    assert pool.cached_block(None, [2]) == table[1]
    assert pool.cached_block(None, [3]) is None
    assert pool.cached_block(first, [5]) == table[2]
    assert pool.cached_block(other, [5]) is None
    pool.free(table[::-1])
    pool.allocate(1)
    assert pool.hash_index() == {"collision": table[:3]}
    pool.allocate(1)
    assert pool.hash_index() == {"collision": table[:2]}


def test_two_blocks_with_equal_content_share_it_and_one_outlives_the_other():
    pool = BlockPool(2)
    pool.allocate(2)
    assert pool.store(0, None, [1]) is pool.store(1, None, [1])
    assert pool.cached_block(None, [1]) == 0
    pool.free([0])
    pool.allocate(1)
    assert pool.cached_block(None, [1]) == 1


def test_clearing_the_cache_needs_an_idle_pool():
    pool = BlockPool(3)
    pool.allocate(2)
    pool.store(0, None, [1])
    with pytest.raises(BlockPoolError, match="while 2 blocks are in use"):
        pool.clear_cache()
    assert pool.cached_block(None, [1]) == 0
    pool.free([1, 0])
    pool.clear_cache()
    assert pool.cached_block(None, [1]) is None
    assert pool.hash_index() == {}


def test_a_block_hash_depends_on_every_token_and_on_the_parent():
    names = {
        hash_block(None, [1, 2]),
        hash_block(None, [2, 1]),
        hash_block(None, [1, 2, 0]),
        hash_block("ab", [1, 2]),
        hash_block(None, [258]),
    }
    assert len(names) == 5
    assert hash_block(None, [1, 2]) == hash_block(None, (1, 2))


def test_twenty_thousand_random_operations_match_a_pool_kept_in_plain_lists():
    plain = PlainPool(random.Random(1))
    done = Counter(plain.operate() for _ in range(20_000))
    assert min(done.values()) > 100
    assert len(done) == 8


def test_the_likest_block_is_sought_among_the_newest_only():
    pool = BlockPool(100)
    pool.allocate(100)
    for block_id in range(100):
        pool.store(block_id, None, [block_id, 0])
    assert pool.closest_block(None, [0, 0]) == (99, 0)
    assert pool.closest_block(None, [40, 1]) == (40, 1)
    assert pool.closest_block(pool.content[0], [0]) is None
