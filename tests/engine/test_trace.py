"""The cache at any step, rebuilt from the events: equal to the live one, and from checkpoints equal to a straight replay."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import EngineConfig, SamplingParams
from engine.events import RequestAdded, SlotsWritten, TokenSampled
from engine.trace import CacheState, Trace
from tests.engine.helpers import assert_all_free, assert_replay_is_live, random_engine, random_life, replayed


def check_everything(engine) -> None:
    engine.audit()
    assert_replay_is_live(engine)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1 << 30),
    block_size=st.integers(1, 16),
    spare=st.integers(0, 12),
    caching=st.booleans(),
    budget=st.sampled_from([1, 3, 16, 64]),
    keep_cache=st.booleans(),
)
def test_replaying_the_events_gives_the_live_pool_tables_and_counts_after_every_step(
    tiny, seed, block_size, spare, caching, budget, keep_cache
):
    just_fits = -(-20 // block_size)  # 18 prompt tokens and a few new ones
    engine = random_engine(tiny, seed, block_size, just_fits + spare, caching, budget)
    rng = random.Random(seed)
    for _ in range(2):
        random_life(engine, rng, num_requests=5, check=check_everything)
        assert_all_free(engine)
        engine.reset(keep_cache=keep_cache)
        check_everything(engine)


def test_a_thousand_random_runs_leave_every_block_free(tiny):
    engines = {}
    preempted = 0
    for seed in range(1000):
        rng = random.Random(seed)
        shape = (rng.choice([1, 2, 3, 4, 8, 16]), rng.choice([20, 24, 32]), rng.random() < 0.7)
        engine = engines.setdefault(shape, random_engine(tiny, seed, shape[0], max(-(-shape[1] // shape[0]), 2), shape[2]))
        random_life(engine, rng, num_requests=3, check=lambda engine: None)
        engine.audit()
        assert_all_free(engine)
        preempted += sum(request.num_preemptions for request in engine.requests.values())
        engine.reset(keep_cache=rng.random() < 0.5)
    assert preempted > 100  # the runs are tight enough to mean something


def test_a_real_models_runs_replay_too(tiny):
    from engine import Engine

    engine = Engine(tiny, EngineConfig(block_size=3, num_blocks=12, max_num_batched_tokens=11, max_num_seqs=3))
    for seed in range(3):
        random_life(engine, random.Random(seed), num_requests=5, check=check_everything)
        assert_all_free(engine)
        engine.reset(keep_cache=True)


# ---- state_at ----------------------------------------------------------------------------------------


@pytest.fixture
def long_trace(tiny, monkeypatch):
    monkeypatch.setattr(Trace, "MIN_INTERVAL", 16)
    engine = random_engine(tiny, 3, block_size=4, num_blocks=10, caching=True)
    random_life(engine, random.Random(3), num_requests=40, check=lambda engine: None)
    return engine.trace


def test_the_state_at_every_step_equals_a_straight_replay(long_trace):
    assert long_trace.last_step > 50
    for step in range(long_trace.last_step + 2):
        assert long_trace.state_at(step) == replayed(long_trace, step)
    assert long_trace.latest == replayed(long_trace)


def test_a_jump_replays_a_bounded_number_of_events(long_trace, monkeypatch):
    assert len(long_trace.events) > 400
    replays = []
    apply = CacheState.apply
    monkeypatch.setattr(CacheState, "apply", lambda state, event: (replays.append(event), apply(state, event))[1])
    for step in range(long_trace.last_step + 1):
        replays.clear()
        long_trace.state_at(step)
        largest_step = len(long_trace.events_between(step, step))
        assert len(replays) <= max(16, len(long_trace.latest.requests)) + 2 * max(largest_step, 60)


def test_the_checkpoints_of_a_long_run_do_not_copy_what_is_finished(tiny):
    engine = random_engine(tiny, 5, block_size=4, num_blocks=10, caching=False)
    random_life(engine, random.Random(5), num_requests=400, check=lambda engine: None)
    trace = engine.trace
    assert len(trace._checkpoints) >= 5
    _, _, before_last = trace._checkpoints[-2]
    _, _, last = trace._checkpoints[-1]
    finished = [name for name, request in before_last.requests.items() if request.status == "finished"]
    assert len(finished) > 100
    assert all(before_last.requests[name] is last.requests[name] for name in finished)


def test_a_state_is_the_callers_own(long_trace):
    step = long_trace.last_step // 2
    state = long_trace.state_at(step)
    state.ref_cnt[0] += 5
    for request in state.requests.values():
        if request.status != "finished":
            request.tokens.append("mine")
            request.block_table.append(0)
    state.requests.clear()
    assert long_trace.state_at(step) == replayed(long_trace, step)
    assert long_trace.latest == replayed(long_trace)


def test_before_the_first_step_nothing_was_computed_and_beyond_the_last_nothing_changes(long_trace):
    assert long_trace.state_at(-1) == CacheState.empty(10, 4)
    assert long_trace.state_at(0).num_used_blocks == 0
    assert long_trace.state_at(10**9) == long_trace.latest


def test_events_between_two_steps_are_those_of_these_steps(long_trace):
    for first, last in ((0, 0), (3, 3), (2, 7), (5, 4), (0, 10**9)):
        assert long_trace.events_between(first, last) == [e for e in long_trace.events if first <= e.step <= last]


def test_each_step_is_timed_once(long_trace):
    assert [event.step for event in long_trace.timings()] == list(range(1, long_trace.last_step + 1))


def test_the_table_in_a_step_is_the_one_its_slots_were_written_through(long_trace):
    size = long_trace.header.block_size
    for event in long_trace.events:
        if isinstance(event, SlotsWritten):
            table = long_trace.table_in(event.step, event.request_id)
            positions = range(event.start_position, event.start_position + len(event.slots))
            assert tuple(table[p // size] * size + p % size for p in positions) == event.slots
    assert long_trace.table_in(1, "ZZ") == []


def test_fresh_slots_are_those_written_in_the_very_step(long_trace):
    for step in range(1, long_trace.last_step + 1):
        written = [slot for e in long_trace.events_between(step, step) if isinstance(e, SlotsWritten) for slot in e.slots]
        assert long_trace.state_at(step).fresh_slots == written


def test_a_block_counts_its_filled_slots_and_keeps_its_owner_while_it_can_be_hit(tiny):
    engine = random_engine(tiny, 0, block_size=4, num_blocks=4, caching=True)
    engine.add_request([1, 2, 3, 4, 5, 6], SamplingParams(max_tokens=1))
    engine.add_request([9], SamplingParams(max_tokens=2, ignore_eos=True))
    engine.step()
    state = engine.trace.latest
    full, half = engine.trace.table_in(1, "A")
    assert (state.num_filled[full], state.owner[full], state.ref_cnt[full]) == (4, "A", 0)  # cached
    assert (state.num_filled[half], state.owner[half]) == (0, None)  # free
    assert (state.num_used_blocks, state.num_cached_blocks, state.num_shared_blocks) == (1, 1, 0)


def test_a_shared_block_passes_to_the_next_holder_when_its_owner_ends(tiny):
    engine = random_engine(tiny, 0, block_size=4, num_blocks=8, caching=True)
    a = engine.add_request([1, 2, 3, 4, 5], SamplingParams(max_tokens=9, ignore_eos=True))
    engine.step()
    b = engine.add_request([1, 2, 3, 4, 6], SamplingParams(max_tokens=9, ignore_eos=True))
    engine.step()
    shared = engine.requests[a].block_table[0]
    assert (engine.trace.latest.owner[shared], engine.trace.latest.ref_cnt[shared]) == (a, 2)
    assert engine.trace.latest.num_shared_blocks == 1
    engine.abort(a)
    assert (engine.trace.latest.owner[shared], engine.trace.latest.ref_cnt[shared]) == (b, 1)


def test_blocks_kept_over_a_reset_are_cached_by_an_earlier_run(tiny):
    engine = random_engine(tiny, 0, block_size=4, num_blocks=8, caching=True)
    engine.generate([[1, 2, 3, 4, 5]], SamplingParams(max_tokens=1))
    engine.reset(keep_cache=True)
    state = engine.trace.state_at(0)
    (block_id,) = [b for b, name in enumerate(state.block_hash) if name]
    assert (state.num_filled[block_id], state.owner[block_id], state.ref_cnt[block_id]) == (4, None, 0)
    assert engine.generate([[1, 2, 3, 4, 5]], SamplingParams(max_tokens=1))[0].num_cached_tokens == 4
    engine.reset()
    assert engine.trace.latest.num_cached_blocks == 0
    assert engine.generate([[1, 2, 3, 4, 5]], SamplingParams(max_tokens=1))[0].num_cached_tokens == 0


def test_a_sampled_token_has_no_slot_until_it_is_computed(tiny):
    engine = random_engine(tiny, 0, block_size=4, num_blocks=8, caching=True)
    a = engine.add_request([1, 2, 3], SamplingParams(max_tokens=3, ignore_eos=True))
    engine.step()
    request = engine.trace.latest.requests[a]
    assert (len(request.tokens), request.num_computed_tokens) == (4, 3)
    assert [type(e) for e in engine.trace.events if isinstance(e, RequestAdded | TokenSampled)] == [RequestAdded, TokenSampled]
