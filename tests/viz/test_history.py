"""Rows over steps are what a replay to each step says."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.trace import Trace
from tests.engine.helpers import random_engine, random_life
from tests.viz.traces import random_trace, scripted_trace, small_trace
from viz.history import pool_history, request_lengths, request_lives, waste_history


def at(steps: list[int], values: list[int], step: int) -> int:
    """The last row at or before `step`."""
    return values[max(i for i, s in enumerate(steps) if s <= step)]


def assert_history_is_the_replay(trace: Trace) -> None:
    pool, lengths, waste = pool_history(trace), request_lengths(trace), waste_history(trace)
    size = trace.header.block_size
    for step in range(trace.last_step + 1):
        state = trace.state_at(step)
        used, cached = state.num_used_blocks, state.num_cached_blocks
        expected = (used, state.num_shared_blocks, cached, state.num_blocks - used - cached)
        assert tuple(at(pool.steps, column, step) for column in (pool.used, pool.shared, pool.cached, pool.free)) == expected

        filled = sum(n for n, ref in zip(state.num_filled, state.ref_cnt) if ref)
        running = [r for r in state.requests.values() if r.block_table]
        row = [at(waste.steps, column, step) for column in waste.rows]
        assert row[0] == filled
        assert sum(row[:3]) == used * size
        assert row[3] == sum(r.num_computed_tokens for r in running)
        assert sum(row[3:6]) == sum(lengths[r.request_id].limit for r in running)
        assert sum(row[3:]) == sum(1 << (lengths[r.request_id].limit - 1).bit_length() for r in running)
        assert min(row) >= 0


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_random_logs_are_the_replay(seed):
    assert_history_is_the_replay(random_trace(seed))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30), block_size=st.integers(1, 8), spare=st.integers(0, 8), caching=st.booleans())
def test_rows_of_the_engines_own_random_runs_are_the_replay(tiny, seed, block_size, spare, caching):
    engine = random_engine(tiny, seed, block_size, -(-26 // block_size) + spare, caching)
    random_life(engine, random.Random(seed), num_requests=6, check=lambda engine: None)
    assert_history_is_the_replay(engine.trace)
    for name, life in request_lives(engine.trace).items():
        assert life.ended is not None, name
        for before, after in pairwise(life.spans):
            assert before.stop == after.start
            assert before.phase != after.phase


def test_a_small_run_counted_by_hand():
    pool = pool_history(small_trace())
    assert (pool.steps, pool.used, pool.shared, pool.cached) == ([0, 1, 2, 3], [0, 2, 3, 2], [0, 0, 1, 0], [0, 0, 0, 0])
    waste = waste_history(small_trace())
    assert waste.steps == [0, 1, 2, 3]
    # A may take 5 + 6 = 11 slots, 16 from a buddy allocator, and ends with 7; B 6 + 2 = 8, and may still fill them
    assert waste.tokens == [0, 5, 6 + 6, 6]
    assert waste.reserved == [0, 2, 1 + 2, 2]
    assert waste.internal == [0, 4, 4, 0]
    assert waste.external == [0, 5, 5, 0]
    # paged: A's last block has 4 slots for positions 4 to 7, of which 7 stays empty; the shared block counts once
    assert waste.paged_tokens == [0, 5, 8, 6]
    assert waste.paged_reserved == [0, 2, 1 + 2, 2]
    assert waste.paged_internal == [0, 1, 1, 0]


def test_lengths_know_what_was_reserved_and_what_was_used():
    lengths = request_lengths(small_trace())
    assert (lengths["A"].limit, lengths["A"].final) == (11, 7)
    assert (lengths["B"].limit, lengths["B"].final) == (8, 8)


def test_phases_of_a_small_run():
    lives = request_lives(small_trace())
    assert [(s.phase, s.start, s.stop) for s in lives["A"].spans] == [("prefill", 0, 1), ("decode", 1, 3)]
    assert (lives["A"].ended, lives["A"].finish_reason) == (3, "stop")
    assert [(s.phase, s.start, s.stop) for s in lives["B"].spans] == [("prefill", 1, 3)]
    assert lives["B"].ended is None


def test_a_preempted_request_waits_and_recomputes():
    seen = set()
    for seed in range(40):
        for life in request_lives(random_trace(seed)).values():
            phases = [span.phase for span in life.spans]
            for before, after in pairwise(phases):
                seen.add((before, after))
                if before == "preempted":
                    assert after in ("recompute", "decode", "prefill")
    assert ("preempted", "recompute") in seen


def test_a_run_of_ten_thousand_steps_is_read_once():
    trace = scripted_trace(
        texts={"A": [" a"] * 9000, "B": [" b"] * 9000}, prompt_lengths={"A": 5, "B": 9}, steps=8000, num_blocks=1200
    )
    history = pool_history(trace)
    assert history.used[-1] == trace.latest.num_used_blocks
    assert len(history.steps) <= len([e for e in trace.events if type(e).__name__ == "BlockAllocated"]) + 2
