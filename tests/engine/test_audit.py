"""Every check of the audit fires: a sound engine, one thing broken, and the sentence that names it."""

from __future__ import annotations

import pytest

from engine import Engine, EngineConfig, SamplingParams
from engine.block_pool import BlockContent
from engine.errors import AuditError
from engine.events import BlockAllocated, BlockStored, RequestFinished, SlotsWritten, TokenSampled
from engine.request import RequestStatus


@pytest.fixture
def engine(tiny) -> Engine:
    """A runs with two full blocks and a half one, B shares A's first block, C waits, D has finished."""
    engine = Engine(tiny, EngineConfig(block_size=4, num_blocks=16, max_num_seqs=2, free_order="ascending"))
    greedy = SamplingParams(max_tokens=20, ignore_eos=True)
    engine.generate([[9, 9]], SamplingParams(max_tokens=1))
    engine.reset()
    d = engine.add_request([7, 7, 7], greedy)
    engine.abort(d)
    engine.add_request([1, 2, 3, 4, 5, 6, 7, 8, 9], greedy)
    engine.step()
    engine.add_request([1, 2, 3, 4, 50], greedy)
    engine.step()
    engine.add_request([3], greedy)
    engine.step()
    engine.audit()
    assert [r.status.value for r in engine.requests.values()] == ["finished", "running", "running", "waiting"]
    assert engine.requests["C"].block_table[0] == engine.requests["B"].block_table[0]
    return engine


def a_block_twice_in_the_free_queue(engine):
    pool = engine.scheduler.pool
    queue = pool.free_block_ids()
    pool.free_block_ids = lambda: [*queue, queue[0]]


def a_used_block_in_the_free_queue(engine):
    engine.scheduler.pool._free[engine.requests["B"].block_table[0]] = None


def a_block_lost_from_the_free_queue(engine):
    engine.scheduler.pool._free.popitem()


def a_reference_too_many(engine):
    engine.scheduler.pool.ref_cnt[engine.requests["B"].block_table[1]] += 1


def a_reference_too_few(engine):
    engine.scheduler.pool.ref_cnt[engine.requests["B"].block_table[0]] -= 1


def swap_in_a_block(engine, request, block_id):
    request.block_table.append(block_id)
    engine.scheduler.pool.ref_cnt[block_id] += 1
    engine.scheduler.pool._free.pop(block_id, None)


def a_waiting_request_that_holds_a_block(engine):
    swap_in_a_block(engine, engine.requests["D"], engine.scheduler.pool.free_block_ids()[0])


def a_finished_request_that_holds_a_block(engine):
    swap_in_a_block(engine, engine.requests["A"], engine.scheduler.pool.free_block_ids()[0])


def a_table_longer_than_the_tokens(engine):
    swap_in_a_block(engine, engine.requests["B"], engine.scheduler.pool.free_block_ids()[0])


def a_table_shorter_than_the_tokens(engine):
    engine.requests["B"].num_computed_tokens += 4


def a_block_twice_in_a_table(engine):
    request = engine.requests["C"]
    last = request.block_table.block_ids.pop()
    engine.scheduler.pool.ref_cnt[last] -= 1
    engine.scheduler.pool._free[last] = None
    swap_in_a_block(engine, request, request.block_table[0])


def a_shared_block_at_another_index(engine):
    b, c = engine.requests["B"], engine.requests["C"]
    held, shared = c.block_table.block_ids, b.block_table[0]
    held[0], held[1] = held[1], shared


def a_shared_block_read_for_other_tokens(engine):
    engine.requests["C"].token_ids[1] += 1


def a_shared_block_that_one_of_two_wrote_on(engine):
    fork(engine)
    engine.requests["E"].token_ids.append(5)
    engine.requests["E"].num_computed_tokens += 1


def a_child_nobody_bore(engine):
    fork(engine)
    engine.requests["E"].child_ids.clear()


def a_child_of_another_prompt(engine):
    fork(engine)
    engine.requests["F"].token_ids[0] += 1
    engine.requests["F"].block_table.clear()
    engine.requests["F"].status = RequestStatus.FINISHED
    for block_id in engine.requests["E"].block_table.block_ids:
        engine.scheduler.pool.ref_cnt[block_id] -= 1


def a_parent_the_trace_did_not_see(engine):
    fork(engine)
    engine.trace.latest.requests["F"].parent_id = "B"


def more_running_than_there_are_seats(engine):
    engine.config = EngineConfig(block_size=4, num_blocks=16, max_num_seqs=1)


def fork(engine):
    """E and its child F share a full block and a half one; everybody else is done."""
    for name in "BCD":
        engine.abort(name)
    engine.add_request([5, 5, 5, 5, 5, 5], SamplingParams(max_tokens=20, n=2, ignore_eos=True))
    engine.step()
    engine.audit()
    assert engine.requests["E"].block_table.block_ids == engine.requests["F"].block_table.block_ids


def more_computed_than_there_are_tokens(engine):
    request = engine.requests["C"]
    del request.token_ids[request.num_computed_tokens - 1 :]


def a_block_with_other_content(engine):
    pool, block_id = engine.scheduler.pool, engine.requests["B"].block_table[1]
    old = pool.content[block_id]
    pool.content[block_id] = BlockContent(old.parent, old.token_ids, old.block_hash)


def a_block_hashed_for_other_tokens(engine):
    engine.requests["B"].token_ids[5] += 1


def a_running_request_with_another_status(engine):
    queue = engine.scheduler.running
    engine.scheduler.waiting[0], queue[1] = queue[1], engine.scheduler.waiting[0]


def a_request_in_no_queue(engine):
    engine.scheduler.waiting.clear()


def a_request_in_two_queues(engine):
    engine.scheduler.waiting.append(engine.requests["B"])


def a_finished_request_in_a_queue(engine):
    engine.scheduler.waiting.append(engine.requests["A"])


def a_hash_missing_from_the_index(engine):
    engine.scheduler.pool._by_hash.popitem()


def a_hash_of_a_block_without_content(engine):
    engine.scheduler.pool._by_hash["feed"] = {15: None}


def a_reference_the_trace_did_not_see(engine):
    engine.trace.latest.ref_cnt[15] += 1


def a_hash_the_trace_did_not_see(engine):
    engine.trace.append(BlockStored(engine.step_count, ("feed",), None, (1, 2, 3, 4), 4, (15,)))


def a_table_the_trace_did_not_see(engine):
    engine.trace.latest.requests["B"].block_table.append(15)


def a_position_the_trace_did_not_see(engine):
    engine.trace.append(SlotsWritten(engine.step_count, "B", 0, (0,)))


def a_token_the_trace_did_not_see(engine):
    engine.trace.append(TokenSampled(engine.step_count, "B", 12, 65, "A"))


def an_end_the_trace_made_up(engine):
    engine.trace.append(RequestFinished(engine.step_count, "D", "stop", "made up"))


def an_allocation_the_trace_made_up(engine):
    engine.trace.append(BlockAllocated(engine.step_count, "B", 3, 15, "made up"))


@pytest.mark.parametrize(
    "break_one_thing, words",
    [
        (a_block_twice_in_the_free_queue, "A block stands twice in the free queue"),
        (a_used_block_in_the_free_queue, "Free and used blocks do not partition the pool"),
        (a_block_lost_from_the_free_queue, "Free and used blocks do not partition the pool"),
        (a_reference_too_many, "ref_cnt is 2, and 1 tables name it"),
        (a_reference_too_few, "ref_cnt is 1, and 2 tables name it"),
        (a_waiting_request_that_holds_a_block, "D is waiting and holds 1 blocks"),
        (a_finished_request_that_holds_a_block, "A is finished and holds 1 blocks"),
        (a_table_longer_than_the_tokens, "B: 4 blocks for 11 tokens with a slot"),
        (a_table_shorter_than_the_tokens, "B: 3 blocks for 15 tokens with a slot"),
        (a_block_twice_in_a_table, "C: a block stands twice in the table"),
        (a_shared_block_at_another_index, "B and C read it for different tokens"),
        (a_shared_block_read_for_other_tokens, "B and C read it for different tokens"),
        (a_shared_block_that_one_of_two_wrote_on, "E and F read it for different tokens"),
        (a_child_nobody_bore, "F is no child of E with the same prompt"),
        (a_child_of_another_prompt, "F is no child of E with the same prompt"),
        (a_parent_the_trace_did_not_see, "Replaying the trace gives other parents than the live engine has"),
        (more_running_than_there_are_seats, "2 requests run; max_num_seqs is 1"),
        (more_computed_than_there_are_tokens, "C: 6 computed of 5 tokens"),
        (a_block_with_other_content, "holds other content than logical block 1 recorded"),
        (a_block_hashed_for_other_tokens, "B: logical block 1 is hashed for other tokens"),
        (a_running_request_with_another_status, "A request in the waiting queue has another status"),
        (a_request_in_no_queue, "The queues do not hold each unfinished request exactly once"),
        (a_request_in_two_queues, "The queues do not hold each unfinished request exactly once"),
        (a_finished_request_in_a_queue, "The queues do not hold each unfinished request exactly once"),
        (a_hash_missing_from_the_index, "Hash index and block hashes differ"),
        (a_hash_of_a_block_without_content, "Hash index and block hashes differ"),
        (a_reference_the_trace_did_not_see, "Replaying the trace gives other ref_cnt than the live engine has"),
        (an_allocation_the_trace_made_up, "Replaying the trace gives other ref_cnt than the live engine has"),
        (a_hash_the_trace_did_not_see, "Replaying the trace gives other hashes than the live engine has"),
        (a_table_the_trace_did_not_see, "Replaying the trace gives other tables than the live engine has"),
        (a_position_the_trace_did_not_see, "Replaying the trace gives other computed than the live engine has"),
        (a_token_the_trace_did_not_see, "Replaying the trace gives other tokens than the live engine has"),
        (an_end_the_trace_made_up, "Replaying the trace gives other status than the live engine has"),
    ],
)
def test_a_check_fires_when_one_thing_is_broken(engine, break_one_thing, words):
    break_one_thing(engine)
    with pytest.raises(AuditError, match=words):
        engine.audit()


def test_every_sentence_of_the_audit_is_among_those_provoked():
    import inspect

    from engine import audit

    raised = inspect.getsource(audit.audit).count("raise AuditError(")
    assert raised == 16  # a new check needs its breakage above


def test_the_audit_changes_nothing(engine):
    events, status = len(engine.trace.events), engine.requests["D"].status
    engine.audit()
    assert len(engine.trace.events) == events
    assert status is RequestStatus.WAITING
