"""Several sequences from one prompt: forks share blocks, the first writer into a shared one copies it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.errors import ConfigError
from engine.events import (
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    PrefixHit,
    RequestForked,
    RequestPreempted,
    SlotsWritten,
    TokenSampled,
)
from engine.lookup import look_up
from engine.request import RequestStatus
from engine.trace import Trace
from tests.engine.helpers import Rehearsal, assert_all_free, assert_replay_is_live, replayed


def rehearse(num_blocks: int = 16, **settings) -> Rehearsal:
    return Rehearsal(block_size=4, num_blocks=num_blocks, **settings)


def of_kind(events, kind) -> list:
    return [event for event in events if isinstance(event, kind)]


def sample(n: int, max_tokens: int = 6, **more) -> SamplingParams:
    return SamplingParams(n=n, max_tokens=max_tokens, ignore_eos=True, **more)


def engine_of(model, **settings) -> Engine:
    return Engine(model, EngineConfig(**{"block_size": 4, "num_blocks": 32, "free_order": "ascending"} | settings))


def run_audited(engine: Engine, limit: int = 500) -> None:
    while engine.has_unfinished_requests():
        assert engine.step_count < limit, "the run does not end"
        engine.step()
        engine.audit()
    assert_replay_is_live(engine)
    assert_all_free(engine)


# ---- the scheduler ------------------------------------------------------------------------------------


def test_a_fork_of_six_tokens_makes_one_copy_and_the_last_writer_writes_in_place():  # P21
    run = rehearse()
    run.add(6, max_tokens=4, n=2)
    assert run.step() == [("A", 0, 6)]
    a, b = run.requests
    pool = run.scheduler.pool
    assert a.block_table.block_ids == b.block_table.block_ids == [0, 1]
    assert pool.ref_cnt[:3] == [2, 2, 0]
    assert run.step() == [("A", 6, 1), ("B", 6, 1)]
    assert (a.block_table.block_ids, b.block_table.block_ids) == ([0, 2], [0, 1])
    assert pool.ref_cnt[:3] == [2, 1, 1]
    assert pool.free_block_ids() == list(range(3, 16))
    run.run()
    (copied,) = of_kind(run.events, BlockCopied)
    assert (copied.request_id, copied.logical_index, copied.source_block_id, copied.block_id, copied.num_slots) == (
        "A", 1, 1, 2, 2,
    )  # fmt: skip
    assert copied.reason == "token 6 lands in a part-filled block that B still reads; 2 slots copied"
    assert [event.slots for event in of_kind(run.events, SlotsWritten)[1:3]] == [(10,), (6,)]
    assert pool.num_free_blocks == 16


def test_a_fork_of_whole_blocks_copies_nothing():  # P21
    run = rehearse()
    run.add(8, max_tokens=4, n=2)
    run.step()
    run.step()
    assert [r.block_table.block_ids for r in run.requests] == [[0, 1, 2], [0, 1, 3]]
    run.run()
    assert of_kind(run.events, BlockCopied) == []


def test_of_four_sequences_three_copy_and_every_event_says_the_count():
    run = rehearse()
    run.add(6, max_tokens=4, n=4)
    run.step()
    run.step()
    assert [r.block_table.block_ids for r in run.requests] == [[0, 2], [0, 3], [0, 4], [0, 1]]
    assert [(e.request_id, e.source_block_id, e.block_id) for e in of_kind(run.events, BlockCopied)] == [
        ("A", 1, 2), ("B", 1, 3), ("C", 1, 4),
    ]  # fmt: skip
    assert [(e.request_id, e.parent_id, e.block_ids, e.reason) for e in of_kind(run.events, RequestForked)] == [
        (child, "A", (0, 1), f"n = 4, all read blocks 0, 1; reference counts rise to {count}")
        for child, count in (("B", 2), ("C", 3), ("D", 4))
    ]
    assert [e.reason for e in of_kind(run.events, BlockCopied)] == [
        "token 6 lands in a part-filled block that B, C and D still read; 2 slots copied",
        "token 6 lands in a part-filled block that C and D still read; 2 slots copied",
        "token 6 lands in a part-filled block that D still reads; 2 slots copied",
    ]
    run.run()
    assert run.scheduler.pool.ref_cnt == [0] * 16


@pytest.mark.parametrize("num_blocks, forks", [(2, False), (3, False), (4, False), (5, True)])
def test_a_fork_takes_all_children_or_none_and_those_left_wait(num_blocks, forks):  # E20
    run = rehearse(num_blocks)
    run.add(6, max_tokens=3, n=3)
    run.add(4)  # runs in the same pass, if there is a block for it
    run.step()
    pool, (a, _, b, c) = run.scheduler.pool, run.requests
    assert [e.block_ids for e in of_kind(run.events, RequestForked)] == [(0, 1) if forks else ()] * 2
    if not forks:
        assert pool.ref_cnt[:2] == [1, 1]
        assert [len(r.block_table) for r in (a, b, c)] == [2, 0, 0]
        assert list(run.scheduler.waiting)[:2] == [b, c]
        assert {b.status, c.status} == {RequestStatus.WAITING}
        free = max(num_blocks - 3, 0)
        assert of_kind(run.events, RequestForked)[0].reason == (
            f"n = 3 wants 2 more blocks of which {free} are free; C waits and will compute the prompt itself"
        )
    run.run(limit=60)
    assert [r.num_output_tokens for r in run.requests] == [3, 1, 3, 3]
    assert pool.ref_cnt == [0] * num_blocks


def test_children_that_waited_find_the_prompts_full_blocks_in_the_pool():
    run = rehearse(num_blocks=3, enable_prefix_caching=True)
    run.add(6, max_tokens=3, n=2)
    run.add(4)
    run.run(limit=40)
    child = next(r for r in run.requests if r.parent_id == "A")
    assert child.num_preemptions == 0
    assert child.num_cached_tokens == 4
    assert [e.request_id for e in of_kind(run.events, PrefixHit)] == [child.request_id]


def test_no_more_sequences_run_than_there_are_seats_and_all_of_them_finish():
    run = rehearse(max_num_seqs=2)
    run.add(6, max_tokens=3, n=5)
    while run.scheduler.num_unfinished:
        run.step()
        assert len(run.scheduler.running) <= 2
    assert [r.num_output_tokens for r in run.requests] == [3] * 5
    assert of_kind(run.events, RequestForked)[0].reason.startswith("n = 5 wants 4 more seats of which 1 are free")


def test_children_whose_first_token_is_their_last_need_no_block():
    run = rehearse(num_blocks=2)
    run.add(6, max_tokens=1, n=3)
    assert run.run() == 1
    assert [e.block_ids for e in of_kind(run.events, RequestForked)] == [(0, 1)] * 2


def test_a_fork_into_a_pool_that_just_fits_ends_whatever_the_block_size():
    for block_size in (1, 2, 3, 4, 8):
        for n in (2, 3, 5):
            run = Rehearsal(block_size=block_size, num_blocks=-(-11 // block_size), enable_prefix_caching=n == 3)
            run.add(6, max_tokens=6, n=n)
            run.run(limit=200)
            assert [r.num_output_tokens for r in run.requests] == [6] * n
            assert run.scheduler.pool.num_free_blocks == run.config.num_blocks


def test_a_preempted_child_leaves_the_shared_blocks_to_its_parent_who_then_writes_in_place():
    run = rehearse(num_blocks=3)
    run.add(6, max_tokens=6, n=2)
    run.step()  # one block is free for the copy
    intruder = run.scheduler.pool.allocate(1)
    assert run.step() == [("A", 6, 1)]
    run.scheduler.pool.free(intruder)
    assert of_kind(run.events, BlockCopied) == []
    (event,) = of_kind(run.events, RequestPreempted)
    assert (event.request_id, event.needed_by, event.num_freed_blocks, event.num_tokens) == ("B", "A", 0, 7)
    assert event.reason == (
        "the pool is dry: A needs a copy of a block for token 6; B is the youngest of 2 running and gives 0 blocks back, "
        "2 more stay with others, 7 tokens to recompute"
    )
    assert run.requests[0].block_table.block_ids == [0, 1]
    run.run(limit=60)
    assert [r.num_output_tokens for r in run.requests] == [6, 6]


def test_a_copy_and_the_blocks_after_it_are_taken_together_or_not_at_all():
    run = rehearse(num_blocks=4)
    run.add(6, max_tokens=8, n=2)
    run.step()
    a, b = run.requests
    a.token_ids += [1, 2, 3]  # as if speculated: positions 6..9, a copy and one block more
    taken = run.scheduler.pool.allocate(1)
    before = (list(a.block_table.block_ids), list(run.scheduler.pool.ref_cnt), len(run.events))
    assert run.scheduler._grow(a, 10) is False
    assert (a.block_table.block_ids, run.scheduler.pool.ref_cnt, len(run.events)) == before
    run.scheduler.pool.free(taken)
    assert run.scheduler._grow(a, 10) is True
    assert (a.block_table.block_ids, b.block_table.block_ids) == ([0, 3, 2], [0, 1])


def test_equal_blocks_that_two_children_filled_are_both_kept_and_one_of_them_is_hit():  # E14
    run = rehearse(enable_prefix_caching=True)
    run.add(range(6), max_tokens=6, n=2)  # both say the same, so that logical block 1 is filled twice
    for _ in range(3):
        run.step()
    a, b = run.requests
    first, second = a.block_table[1], b.block_table[1]
    pool = run.scheduler.pool
    assert first != second
    assert pool.content[first] is pool.content[second] is not None
    assert pool.ref_cnt[first] == pool.ref_cnt[second] == 1
    run.scheduler.finish(a, "stopped")
    assert (b.block_table[1], pool.ref_cnt[second], pool.content[second] is not None) == (second, 1, True)
    c = run.add([*range(6), 7, 7, 99])
    run.step()
    assert c.num_cached_tokens == 8
    run.run()


# ---- the engine ---------------------------------------------------------------------------------------


def test_children_get_the_next_free_letters_and_outputs_come_parent_first(tiny):
    engine = engine_of(tiny)
    outputs = engine.generate(["abcdef", "xyz"], [sample(3), sample(2)])
    assert [(o.request_id, o.parent_id) for o in outputs] == [("A", None), ("C", "A"), ("D", "A"), ("B", None), ("E", "B")]
    assert [o.prompt for o in outputs] == ["abcdef"] * 3 + ["xyz"] * 2
    assert [o.num_cached_tokens for o in outputs] == [0, 6, 6, 0, 3]


@pytest.mark.parametrize("length", [1, 4, 6, 8, 11])
def test_greedy_children_say_what_the_parent_says_alone(tiny, length):
    prompt = list(range(40, 40 + length))
    alone = engine_of(tiny).generate([prompt], sample(1, 10))[0].token_ids
    engine = engine_of(tiny)
    engine.runner.kv_cache.fill_(float("nan"))
    engine.add_request(prompt, sample(3, 10))
    run_audited(engine)
    assert [engine.output(name).token_ids for name in "ABC"] == [alone] * 3
    assert sum(e.num_tokens for e in engine.trace.timings()) == length + 3 * 9  # the prompt is computed once
    assert len(of_kind(engine.trace.events, BlockCopied)) == (2 if length % 4 else 0)


def test_children_that_share_a_seed_differ_as_requests_with_the_seeds_in_a_row_do(tiny):
    def drawn(n: int, seed: int) -> list[list[int]]:
        return [o.token_ids for o in engine_of(tiny).generate(["abcdef"], sample(n, 8, temperature=1.0, seed=seed))]

    assert drawn(3, 5) == drawn(1, 5) + drawn(1, 6) + drawn(1, 7)
    assert len({tuple(t) for t in drawn(3, 5)}) == 3
    assert len(drawn(2, (1 << 63) - 1)) == 2


def test_children_that_wait_draw_what_those_that_fork_draw(tiny):
    roomy, tight = engine_of(tiny), engine_of(tiny, num_blocks=4)
    params = sample(3, 8, temperature=1.0, seed=9)
    expected = [o.token_ids for o in roomy.generate(["abcdef"], params)]
    tight.add_request("abcdef", params)
    run_audited(tight)
    assert of_kind(tight.trace.events, RequestForked) != []
    assert [tight.output(name).token_ids for name in "ABC"] == expected


def test_without_a_seed_children_differ_and_a_run_repeats(tiny):
    runs = [[o.token_ids for o in engine_of(tiny).generate(["abc"], sample(3, 8, temperature=1.0))] for _ in range(2)]
    assert runs[0] == runs[1]
    assert len({tuple(t) for t in runs[0]}) == 3


def test_a_copy_carries_every_layers_keys_and_values_of_the_slots_in_use(tiny):
    engine = engine_of(tiny)
    engine.runner.kv_cache.fill_(float("nan"))
    engine.add_request("abcdef", sample(2))
    engine.step()
    cache = engine.runner.kv_cache
    before = [pool[:, 4:8].clone() for pool in (cache.k_pool, cache.v_pool)]
    engine.step()
    (copied,) = of_kind(engine.trace.events, BlockCopied)
    assert (copied.source_block_id, copied.block_id, copied.num_slots) == (1, 2, 2)
    for pool, old in zip((cache.k_pool, cache.v_pool), before, strict=True):
        assert torch.equal(pool[:, 8:10], old[:, :2])
        assert torch.equal(pool[:, 4:6], old[:, :2])
        assert not pool[:, 10].isnan().any()
        assert pool[:, 11].isnan().all()


def test_what_one_sequence_writes_is_never_seen_by_the_other(tiny):
    engine = engine_of(tiny)
    engine.add_request("abcdef", sample(2, 8, temperature=1.0, seed=3))
    engine.step()
    shared = engine.runner.kv_cache.k_pool[:, :6].clone()
    run_audited(engine)
    assert torch.equal(engine.runner.kv_cache.k_pool[:, :6], shared)
    a, b = engine.output("A"), engine.output("B")
    assert a.token_ids != b.token_ids
    for output, seed in ((a, 3), (b, 4)):
        again = engine_of(tiny).generate(["abcdef"], sample(1, 8, temperature=1.0, seed=seed))[0]
        assert again.token_ids == output.token_ids


def test_a_lookup_of_a_child_finds_the_vectors_its_parent_computed(tiny, tmp_path):
    engine = engine_of(tiny)
    engine.add_request("abcdef", sample(2, 6, temperature=1.0, seed=3))
    for _ in range(3):
        engine.step()
    for key in (0, 3, 4, 5, 6):
        mine, parents = (engine.lookup(name, 7, key, layer=1, head=2) for name in "BA")
        assert mine.slot_state == parents.slot_state == "captured"
        assert mine.max_abs_difference < 1e-5
        assert torch.equal(mine.key, parents.key) == (key < 6)
    assert engine.lookup("A", 7, 4).slot == 8  # copied
    assert engine.lookup("B", 7, 4).slot == 4  # in place
    assert engine.lookup("A", 5, 4).slot == 4  # before the copy
    run_audited(engine)
    engine.trace.save(tmp_path / "fork.pagewalk")
    trace = Trace.load(tmp_path / "fork.pagewalk")
    assert trace.events == engine.trace.events
    assert trace.latest == replayed(engine.trace)
    recorded, live = look_up(trace, "B", 7, 4, 1, 2), engine.lookup("B", 7, 4, 1, 2)
    assert torch.equal(recorded.key, live.key)
    assert (recorded.slot, recorded.score) == (live.slot, live.score)


def test_a_hit_on_a_copied_block_is_linked_to_the_vectors_that_were_copied(tiny):
    engine = engine_of(tiny)
    engine.add_request(list(range(40, 46)), sample(2, 4))
    run_audited(engine)
    (copied,) = of_kind(engine.trace.events, BlockCopied)
    text = engine.output("A").token_ids
    engine.add_request([*range(40, 46), *text[:2], 9], sample(1))
    engine.step()
    hit = next(e for e in engine.trace.events if isinstance(e, PrefixHit))
    assert hit.num_tokens == 8
    assert copied.block_id in hit.block_ids or copied.source_block_id in hit.block_ids
    for key in range(8):
        assert engine.lookup("C", 8, key).max_abs_difference < 1e-5


def test_parent_and_children_end_by_themselves(tiny):
    engine = engine_of(tiny)
    engine.add_request("abcdef", sample(3, 10))
    engine.step()
    engine.abort("A")
    engine.audit()
    assert engine.has_unfinished_requests()
    engine.step()
    engine.abort("B")
    engine.audit()
    run_audited(engine)
    assert [engine.output(name).finish_reason for name in "ABC"] == ["abort", "abort", "length"]


def test_a_parent_stopped_before_its_prompt_is_computed_has_no_children(tiny):
    engine = engine_of(tiny, max_num_batched_tokens=2)
    engine.add_request("abcdef", sample(3))
    engine.step()
    engine.abort("A")
    run_audited(engine)
    assert list(engine.requests) == ["A"]


def test_a_prompt_computed_in_chunks_and_preempted_forks_once(tiny):
    engine = engine_of(tiny, num_blocks=5, max_num_batched_tokens=3, enable_prefix_caching=False)
    engine.add_request("wxyz", sample(1, 12))
    engine.add_request("abcdefghi", sample(2, 4))
    run_audited(engine)
    assert [e.request_id for e in of_kind(engine.trace.events, RequestForked)] == ["C"]
    assert engine.output("B").token_ids == engine.output("C").token_ids
    assert engine.output("B").num_preemptions >= 1


def test_the_first_tokens_of_a_family_are_sampled_in_one_step(tiny):
    engine = engine_of(tiny)
    engine.add_request("abcdef", sample(3))
    out = engine.step()
    assert list(out.tokens) == ["A", "B", "C"]
    kinds = [type(e) for e in out.events]
    assert kinds.index(SlotsWritten) < kinds.index(RequestForked) < kinds.index(TokenSampled)
    assert kinds.count(BlockAllocated) == 2
    assert BlockFreed not in kinds


@pytest.mark.parametrize("n", [0, -1, 257, True, 2.0, "2"])
def test_a_number_of_sequences_that_makes_no_sense_is_refused(n):
    with pytest.raises(ConfigError, match=r"n is .*; give a whole number from 1 to 256"):
        SamplingParams(n=n)


def test_a_family_whose_logits_are_no_numbers_ends_with_an_error_each(tiny):
    engine = engine_of(tiny)
    execute = engine.runner.execute

    def broken(plan, capture):
        return dataclasses.replace(execute(plan, capture), logits=torch.full((1, tiny.vocab_size), float("nan")))

    engine.runner.execute = broken
    engine.add_request("abcdef", sample(3))
    run_audited(engine)
    assert [engine.output(name).finish_reason for name in "ABC"] == ["error"] * 3
