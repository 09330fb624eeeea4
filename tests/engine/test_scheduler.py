"""What runs when, and which blocks that takes; without a model."""

from __future__ import annotations

import pytest

from engine.errors import RequestError
from engine.events import BlockAllocated, BlockFreed, BlockTouched, PrefixHit, PrefixMiss, RequestPreempted
from engine.request import RequestStatus
from tests.engine.helpers import Rehearsal


@pytest.mark.parametrize(
    "num_requests, num_blocks, iterations, preemptions, recomputed",
    [(4, 12, 44, 3, 55), (4, 24, 28, 1, 25), (4, 32, 24, 0, 0), (6, 12, 64, 7, 107), (6, 8, 100, 8, 96)],
)
def test_the_scheduling_figures_of_the_oracle_engine(num_requests, num_blocks, iterations, preemptions, recomputed):  # P13, P14
    run = Rehearsal(block_size=4, num_blocks=num_blocks)
    for _ in range(num_requests):
        run.add(5, max_tokens=24)
    assert run.run() == iterations
    assert run.num_preemptions == preemptions
    assert run.num_recomputed_tokens == recomputed
    assert sum(e.num_tokens for e in run.events if isinstance(e, RequestPreempted)) == recomputed
    assert run.scheduler.pool.num_free_blocks == num_blocks


# ---- admission --------------------------------------------------------------------------------------


def test_a_reserve_does_not_exclude_a_request_from_an_idle_pool():  # P10
    run = Rehearsal(block_size=4, num_blocks=6, watermark=0.5)
    assert run.config.watermark_blocks == 3
    run.add(13)
    assert run.step() == [("A", 0, 13)]


def test_a_reserve_delays_a_request_while_another_runs():
    run = Rehearsal(block_size=4, num_blocks=6, watermark=0.5)
    run.add(5, max_tokens=3)
    run.add(8)
    assert run.step() == [("A", 0, 5)]  # 4 blocks are free; B needs 2 and the reserve is 3
    assert run.step() == [("A", 5, 1)]
    assert run.step() == [("A", 6, 1)]
    assert run.step() == [("B", 0, 8)]


def test_a_preempted_request_comes_back_through_the_reserve():  # E7
    run = Rehearsal(block_size=4, num_blocks=6, watermark=0.5)
    a = run.add(4, max_tokens=13)  # grows to 4 blocks
    b = run.add(4, max_tokens=13)
    run.run()
    assert b.num_preemptions == 1
    assert [(e.request_id, e.num_tokens) for e in run.events if isinstance(e, RequestPreempted)] == [("B", 13)]  # 4 blocks
    assert (a.num_output_tokens, b.num_output_tokens) == (13, 13)
    assert run.scheduler.pool.num_free_blocks == 6


def test_waiting_requests_are_admitted_in_order_and_a_large_one_is_not_overtaken():
    run = Rehearsal(block_size=4, num_blocks=6)
    run.add(12, max_tokens=2)
    run.add(16)
    run.add(4)
    assert run.step() == [("A", 0, 12)]
    assert run.step() == [("A", 12, 1)]
    assert run.step() == [("B", 0, 16), ("C", 0, 4)]


def test_no_more_than_max_num_seqs_run_at_once():
    run = Rehearsal(block_size=4, num_blocks=64, max_num_seqs=2)
    for _ in range(5):
        run.add(4, max_tokens=2)
    widths = []
    while run.scheduler.num_unfinished:
        widths.append(len(run.step()))
    assert widths == [2, 2, 2, 2, 1, 1]


def test_a_request_that_cannot_be_admitted_changes_nothing():  # E16
    run = Rehearsal(block_size=4, num_blocks=4, enable_prefix_caching=True)
    shared = list(range(8))
    run.add(shared)
    run.run()
    a = run.add([50, 51, 52, 53, 54], max_tokens=5)
    run.step()
    pool = run.scheduler.pool
    run.add([*shared, 90, 91, 92, 93, 94, 95, 96])  # two hits and two more; two are free, and they are the hits
    before = (pool.free_block_ids(), list(pool.ref_cnt), pool.hash_index(), len(run.events))
    plan = run.scheduler.schedule()
    assert [item.request for item in plan] == [a]
    assert (pool.free_block_ids(), pool.ref_cnt, pool.hash_index(), len(run.events)) == before


def test_a_request_that_waited_looks_up_again_after_its_hits_were_evicted():  # E16
    run = Rehearsal(block_size=4, num_blocks=4, enable_prefix_caching=True)
    shared = list(range(8))
    run.add(shared)
    run.run()
    run.add(range(50, 58), max_tokens=6)  # grows over both cached blocks while C waits
    run.step()
    c = run.add([*shared, 90])
    run.run()
    assert c.num_cached_tokens == 0
    assert [e for e in run.events if isinstance(e, PrefixHit)] == []
    assert [(e.request_id, e.logical_index) for e in run.events if isinstance(e, PrefixMiss)][-1] == ("C", 0)


# ---- chunks ------------------------------------------------------------------------------------------


def test_a_long_prompt_is_computed_in_chunks_of_the_batch_budget():
    run = Rehearsal(block_size=4, num_blocks=16, max_num_batched_tokens=7)
    run.add(17, max_tokens=2)
    assert [run.step() for _ in range(4)] == [[("A", 0, 7)], [("A", 7, 7)], [("A", 14, 3)], [("A", 17, 1)]]


def test_running_requests_come_before_waiting_ones_in_the_budget():
    run = Rehearsal(block_size=4, num_blocks=16, max_num_batched_tokens=6)
    run.add(5, max_tokens=3)
    run.add(9)
    assert run.step() == [("A", 0, 5), ("B", 0, 1)]
    assert run.step() == [("A", 5, 1), ("B", 1, 5)]
    assert run.step() == [("A", 6, 1), ("B", 6, 3)]


def test_a_budget_of_one_token_still_serves_everyone_oldest_first():
    run = Rehearsal(block_size=2, num_blocks=16, max_num_batched_tokens=1)
    run.add(2, max_tokens=2)
    run.add(1, max_tokens=1)
    steps = []
    while run.scheduler.num_unfinished:
        steps += run.step()
    assert steps == [("A", 0, 1), ("A", 1, 1), ("A", 2, 1), ("B", 0, 1)]


def test_no_step_computes_more_than_the_budget_and_every_position_once_without_preemption():
    run = Rehearsal(block_size=4, num_blocks=100, max_num_batched_tokens=10)
    for num in (23, 1, 8, 40, 5):
        run.add(num, max_tokens=6)
    computed: list[tuple[str, int]] = []
    while run.scheduler.num_unfinished:
        plan = run.step()
        assert 1 <= sum(num for _, _, num in plan) <= 10
        computed += [(name, start + i) for name, start, num in plan for i in range(num)]
    assert len(set(computed)) == len(computed) == sum(num + 5 for num in (23, 1, 8, 40, 5))


# ---- growth and preemption ---------------------------------------------------------------------------


def test_a_block_is_taken_when_the_first_position_in_it_is_about_to_be_written():
    run = Rehearsal(block_size=4, num_blocks=16)
    a = run.add(4, max_tokens=6)
    sizes = []
    while run.scheduler.num_unfinished:
        run.step()
        sizes.append(len(a.block_table))
    assert sizes == [1, 2, 2, 2, 2, 0]  # 4, 5, 6, 7, 8 and 9 positions written; the tenth token never is
    assert [(e.logical_index, e.block_id, e.reason) for e in run.events if isinstance(e, BlockAllocated)] == [
        (0, 0, "token 0 starts logical block 0 (0 % 4 = 0)"),
        (1, 1, "token 4 starts logical block 1 (4 % 4 = 0)"),
        (2, 2, "token 8 starts logical block 2 (8 % 4 = 0)"),
    ]


def test_the_youngest_gives_way_and_goes_to_the_head_of_the_queue():
    run = Rehearsal(block_size=4, num_blocks=3)
    a, b = run.add(4, max_tokens=6), run.add(4, max_tokens=6)
    c = run.add(4, max_tokens=6)
    run.step()
    d = run.add(1)
    assert run.step() == [("A", 4, 1)]  # A takes C's block; B needs one too, and is then the youngest itself
    assert [e.request_id for e in run.events if isinstance(e, RequestPreempted)] == ["C", "B"]
    assert list(run.scheduler.waiting) == [b, c, d]
    assert run.scheduler.running == [a]
    run.run()
    assert [r.num_output_tokens for r in (a, b, c)] == [6, 6, 6]
    assert a.num_preemptions == 0


def test_a_preemption_says_who_needed_the_block_and_what_is_lost():
    run = Rehearsal(block_size=4, num_blocks=2)
    run.add(4, max_tokens=3)
    run.add(4, max_tokens=3)
    run.step()
    run.step()
    (event,) = [e for e in run.events if isinstance(e, RequestPreempted)]
    assert event.reason == (
        "the pool is dry: A needs a block for token 4; B is the youngest of 2 running and gives 1 blocks back, "
        "5 tokens to recompute"
    )
    assert (event.request_id, event.needed_by, event.num_freed_blocks, event.num_tokens) == ("B", "A", 1, 5)
    (freed,) = [e for e in run.events if isinstance(e, BlockFreed)]
    assert (freed.request_id, freed.block_ids, freed.reason) == ("B", (1,), "B was preempted")


def test_a_request_preempted_after_ten_tokens_recomputes_prompt_and_output_and_repeats_none():  # E19
    run = Rehearsal(block_size=4, num_blocks=8)
    a, b = run.add(6, max_tokens=16), run.add(6, max_tokens=16)
    run.run()
    assert a.num_preemptions == 0
    assert b.num_preemptions == 1
    (event,) = [e for e in run.events if isinstance(e, RequestPreempted)]
    assert event.num_tokens == b.num_recomputed_tokens == 6 + 11
    assert b.num_output_tokens == 16


def test_nobody_is_admitted_in_the_step_of_a_preemption():
    run = Rehearsal(block_size=4, num_blocks=4)
    run.add(4, max_tokens=12)
    run.add(8, max_tokens=8)
    run.step()
    run.add(1)  # C would fit into the blocks that B gives back
    assert run.step() == [("A", 4, 1)]
    assert [r.request_id for r in run.scheduler.waiting] == ["B", "C"]
    assert run.scheduler.pool.num_free_blocks == 2


def test_a_pool_that_just_fits_one_request_serves_many_one_after_the_other():
    run = Rehearsal(block_size=1, num_blocks=8)
    for _ in range(5):
        run.add(4, max_tokens=5)
    run.run()
    assert [r.num_output_tokens for r in run.requests] == [5] * 5
    assert run.scheduler.pool.num_free_blocks == 8


# ---- prefix caching ------------------------------------------------------------------------------------


def test_the_same_prompt_reuses_all_blocks_but_the_one_it_must_compute_from():  # P03
    run = Rehearsal(block_size=4, num_blocks=8, enable_prefix_caching=True)
    for _ in range(2):
        run.add(range(8))
        run.run()
    assert [r.num_cached_tokens for r in run.requests] == [0, 4]
    hit = next(e for e in run.events if isinstance(e, PrefixHit))
    assert (hit.request_id, hit.num_tokens, hit.block_ids) == ("B", 4, (0,))
    assert hit.reason == "the first 4 of 8 tokens are in the pool, in 1 full block"


def test_a_prompt_of_whole_blocks_and_one_token_computes_that_one_the_second_time():  # E9
    run = Rehearsal(block_size=64, num_blocks=130, enable_prefix_caching=True, max_num_batched_tokens=8192)
    prompt = range(120 * 64 + 1)
    assert len(prompt) == 7681
    plans = []
    for _ in range(2):
        run.add(prompt)
        plans.append(run.step())
    assert plans == [[("A", 0, 7681)], [("B", 7680, 1)]]


def test_two_equal_prompts_admitted_in_one_step_do_not_hit_each_other():  # E12
    run = Rehearsal(block_size=4, num_blocks=8, enable_prefix_caching=True)
    run.add(range(9))
    run.add(range(9))
    assert run.step() == [("A", 0, 9), ("B", 0, 9)]
    assert [e for e in run.events if isinstance(e, BlockTouched)] == []


def test_blocks_computed_in_one_step_can_be_hit_in_the_next():
    run = Rehearsal(block_size=4, num_blocks=8, enable_prefix_caching=True)
    a = run.add(range(9), max_tokens=5)
    run.step()
    b = run.add(range(9))
    assert run.step() == [("A", 9, 1), ("B", 8, 1)]
    assert a.block_table.block_ids[:2] == [e.block_id for e in run.events if isinstance(e, BlockTouched)]
    assert b.num_cached_tokens == 8
    run.run()
    assert run.scheduler.pool.ref_cnt == [0] * 8


def test_a_prompt_shorter_than_a_block_matches_nothing():  # E18
    run = Rehearsal(block_size=4, num_blocks=8, enable_prefix_caching=True)
    for _ in range(2):
        run.add(range(3))
        run.run()
    assert [r.num_cached_tokens for r in run.requests] == [0, 0]
    assert [e for e in run.events if isinstance(e, PrefixHit | PrefixMiss)] == []


def test_generated_tokens_can_be_hit_too():
    run = Rehearsal(block_size=4, num_blocks=8, enable_prefix_caching=True)
    run.add(range(4), max_tokens=6)
    run.run()
    b = run.add([*range(4), *[run.token] * 4, 99])
    run.run()
    assert b.num_cached_tokens == 8


def test_with_prefix_caching_off_nothing_is_looked_up_or_stored():
    run = Rehearsal(block_size=4, num_blocks=8, enable_prefix_caching=False)
    for _ in range(2):
        run.add(range(9))
        run.run()
    assert {type(e).__name__ for e in run.events} == {"BlockAllocated", "SlotsWritten", "BlockFreed"}


def test_a_preempted_request_finds_its_own_blocks_again():
    plain, cached = (Rehearsal(block_size=4, num_blocks=8, enable_prefix_caching=on) for on in (False, True))
    for run in (plain, cached):
        run.add(6, max_tokens=16)
        run.add(6, max_tokens=16)
        run.run()
    assert plain.num_recomputed_tokens == 17
    assert cached.num_preemptions == 1
    assert cached.num_recomputed_tokens < 17
    assert cached.requests[1].num_cached_tokens == 0  # what it found after the preemption was its own


@pytest.mark.parametrize(
    "prompt, index, num_shared, evicted, reason",
    [
        ([*range(4), 4, 5, 99, 98, 97], 1, 2, None, "block 1 differs at token 6: only 2 of 4 tokens shared with block 1"),
        ([0, 1, 2, 99, 4], 0, 3, None, "block 0 differs at token 3: only 3 of 4 tokens shared with block 0"),
        ([*range(4), 90, 91, 92, 93, 94], 1, 0, None, "no block holds tokens 4 to 7 after the same beginning"),
        ([4, 5, 6, 7, 8], 0, 0, None, "no block holds tokens 0 to 3 after the same beginning"),
    ],
)
def test_a_miss_says_how_far_the_likest_block_agrees(prompt, index, num_shared, evicted, reason):
    run = Rehearsal(block_size=4, num_blocks=16, enable_prefix_caching=True)
    run.add(range(9))
    run.run()
    run.add(prompt)
    run.run()
    miss = [e for e in run.events if isinstance(e, PrefixMiss)][-1]
    assert (miss.request_id, miss.logical_index, miss.num_shared_tokens, miss.evicted_step) == ("B", index, num_shared, evicted)
    assert miss.reason == reason


def test_a_miss_says_when_the_block_it_wanted_was_evicted():
    run = Rehearsal(block_size=4, num_blocks=4, enable_prefix_caching=True)
    run.add(range(9))
    run.run()
    run.add(range(50, 66))
    run.run()
    run.add(range(9))
    run.run()
    miss = [e for e in run.events if isinstance(e, PrefixMiss)][-1]
    assert (miss.request_id, miss.logical_index, miss.evicted_step) == ("C", 0, 2)
    assert miss.reason == "the block that held tokens 0 to 3 was evicted at step 2"


def test_what_was_evicted_is_remembered_for_as_many_blocks_as_the_pool_has():
    run = Rehearsal(block_size=4, num_blocks=3, enable_prefix_caching=True)
    for _ in range(20):
        run.add(9)
    run.run()
    assert len(run.scheduler._evicted) == 3


def test_equal_blocks_computed_in_one_step_are_both_kept_and_either_can_be_hit():  # E14
    run = Rehearsal(block_size=4, num_blocks=8, enable_prefix_caching=True)
    a, b = run.add(range(9), max_tokens=3), run.add(range(9), max_tokens=3)
    run.step()
    pool = run.scheduler.pool
    assert (a.block_table.block_ids, b.block_table.block_ids) == ([0, 1, 2], [3, 4, 5])
    assert [pool.content[i] is pool.content[j] for i, j in ((0, 3), (1, 4))] == [True, True]
    run.scheduler.finish(a, "stopped")
    assert (b.block_table.block_ids, pool.ref_cnt) == ([3, 4, 5], [0, 0, 0, 1, 1, 1, 0, 0])
    assert pool.free_block_ids() == [6, 7, 2, 1, 0]
    c = run.add(range(20, 40))  # 5 blocks: evicts both of A's copies
    run.step()
    assert c.block_table.block_ids == []  # done, and 0 and 1 now hold its content
    assert (b.block_table.block_ids, pool.ref_cnt[3:6]) == ([3, 4, 5], [1, 1, 1])
    d = run.add(range(9))
    run.step()
    assert d.num_cached_tokens == 8
    assert [e.block_id for e in run.events if isinstance(e, BlockTouched)] == [3, 4]


def test_another_prompt_in_a_reused_block_is_all_that_can_be_hit_there():  # E11
    run = Rehearsal(block_size=4, num_blocks=2, enable_prefix_caching=True)
    run.add([1, 2, 3, 4, 5])
    run.run()
    run.add([6, 7, 8, 9, 10])
    run.run()
    x, y = run.add([1, 2, 3, 4, 5]), run.add([6, 7, 8, 9, 10])
    run.step()
    assert (x.num_cached_tokens, x.num_output_tokens) == (0, 1)
    run.run()
    assert y.num_cached_tokens == 0  # X took both blocks again


def test_the_free_queue_and_the_tables_of_a_whole_scene_are_exactly_these():
    run = Rehearsal(block_size=4, num_blocks=10, enable_prefix_caching=True)
    pool = run.scheduler.pool
    a = run.add(range(10), max_tokens=4)
    run.step()
    assert (a.block_table.block_ids, pool.free_block_ids()) == ([0, 1, 2], [3, 4, 5, 6, 7, 8, 9])
    b = run.add([*range(8), 60, 61], max_tokens=3)
    run.step()
    assert (b.block_table.block_ids, pool.free_block_ids()) == ([0, 1, 3], [4, 5, 6, 7, 8, 9])
    assert pool.ref_cnt == [2, 2, 1, 1, 0, 0, 0, 0, 0, 0]
    run.step()
    run.step()  # A took block 4 for token 12; both end: A's tail first, what they share leaves with B
    assert pool.free_block_ids() == [5, 6, 7, 8, 9, 4, 2, 3, 1, 0]
    assert pool.cached_blocks() == [2, 3, 1, 0]
    c = run.add(range(8), max_tokens=1)  # one block hit, one computed
    run.step()
    assert (c.num_cached_tokens, pool.free_block_ids()) == (4, [6, 7, 8, 9, 4, 2, 3, 1, 5, 0])


# ---- refusals -----------------------------------------------------------------------------------------


def test_a_prompt_larger_than_the_pool_is_refused_with_both_numbers():  # P07
    run = Rehearsal(block_size=16, num_blocks=8)
    with pytest.raises(RequestError, match=r"150 prompt tokens and 1 new ones need 10 blocks of 16; the pool has 8\."):
        run.add(150)
    run.add(100)
    assert run.run() == 1


def test_a_prompt_that_fits_is_refused_if_it_could_not_finish():  # P08, E1
    run = Rehearsal(block_size=4, num_blocks=2)
    with pytest.raises(RequestError, match=r"8 prompt tokens and 5 new ones need 3 blocks of 4; the pool has 2\."):
        run.add(8, max_tokens=5)
    run.add(8, max_tokens=1)
    assert run.run() == 1


def test_the_last_token_needs_no_slot_so_a_request_may_fill_the_pool_exactly():
    run = Rehearsal(block_size=4, num_blocks=2)
    run.add(4, max_tokens=5)
    assert run.run() == 5
    with pytest.raises(RequestError):
        run.add(4, max_tokens=6)


def test_a_request_beyond_the_models_length_is_refused():  # P08
    run = Rehearsal(block_size=4, num_blocks=100, max_model_len=20)
    run.add(10, max_tokens=10)
    with pytest.raises(RequestError, match=r"11 prompt tokens and 10 new ones make 21; the model reads at most 20\."):
        run.add(11, max_tokens=10)


def test_the_configured_length_can_shorten_the_models_and_not_lengthen_it():
    from engine import EngineConfig
    from engine.scheduler import Scheduler

    limits = [Scheduler(EngineConfig(max_model_len=n), 100, lambda event: None).max_model_len for n in (50, 100, 200, None)]
    assert limits == [50, 100, 100, 100]


# ---- the ends ------------------------------------------------------------------------------------------


def test_a_finished_request_gives_its_blocks_back_tail_first():  # E17
    run = Rehearsal(block_size=4, num_blocks=8)
    run.add(12)
    run.run()
    (freed,) = [e for e in run.events if isinstance(e, BlockFreed)]
    assert freed.block_ids == (2, 1, 0)
    assert run.scheduler.pool.free_block_ids() == [3, 4, 5, 6, 7, 2, 1, 0]


def test_a_waiting_request_can_be_taken_out():
    run = Rehearsal(block_size=4, num_blocks=2)
    a, b = run.add(8), run.add(8)
    run.scheduler.finish(b, "stopped")
    assert run.run() == 1
    assert a.num_output_tokens == 1
    assert b.status is RequestStatus.FINISHED
