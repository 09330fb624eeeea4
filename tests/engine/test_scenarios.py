"""The shipped recordings: each is there, is small, answers lookups at every step, and shows what its scenario promises."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from engine.engine import Engine
from engine.errors import LookupFailed, PagewalkError
from engine.events import (
    BlockAllocated,
    BlockCopied,
    BlockRemoved,
    Event,
    PrefixHit,
    PrefixMiss,
    RequestAdded,
    RequestFinished,
    RequestForked,
    RequestPreempted,
    SlotsWritten,
    StepTimed,
    TokenSampled,
)
from engine.lookup import look_up
from engine.model_loader import LoadedModel
from engine.recording_shelf import FOLDER, RecordingShelf
from engine.scenarios import PAPER, SCENARIOS, family, listed
from engine.session import Session
from engine.trace import Trace

SHELF = RecordingShelf()
MAX_BYTES = 6 << 20


def trace_of(scenario_id: str) -> Trace:
    return SHELF.get(scenario_id).trace


def events_of(scenario_id: str, kind: type[Event], request_id: str | None = None) -> list:
    found = [event for event in trace_of(scenario_id).events if isinstance(event, kind)]
    return [event for event in found if request_id is None or event.request_id == request_id]  # type: ignore[attr-defined]


def token_ids(trace: Trace, request_id: str) -> list[int]:
    return [e.token_id for e in trace.events if isinstance(e, TokenSampled) and e.request_id == request_id]


def test_every_scenario_is_recorded_and_nothing_else_is_shipped() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{scenario_id}.pagewalk" for scenario_id in SCENARIOS}


def test_all_recordings_together_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MAX_BYTES


def test_a_list_shows_a_family_once() -> None:
    assert [scenario.id for scenario in listed() if scenario.family] == ["block-size-16"]
    assert [s.id for s in family(SCENARIOS["block-size-16"])] == [f"block-size-{n}" for n in (1, 4, 16, 64)]
    assert family(SCENARIOS["plain"]) == []


def test_an_unknown_example_is_named_with_those_there_are() -> None:
    with pytest.raises(PagewalkError, match=r"There is no example 'nope'\. Pick one of: first, plain"):
        SHELF.get("nope")


@pytest.mark.parametrize("scenario_id", SCENARIOS)
def test_a_recording_is_of_its_scenario(scenario_id: str) -> None:
    scenario, trace = SCENARIOS[scenario_id], trace_of(scenario_id)
    assert (trace.header.num_blocks, trace.header.block_size) == (
        scenario.run.config.num_blocks,
        scenario.run.config.block_size,
    )
    assert [event.prompt for event in events_of(scenario_id, RequestAdded)] == list(scenario.run.prompts)
    assert {event.max_tokens for event in events_of(scenario_id, RequestAdded)} == {scenario.run.params.max_tokens}
    assert {request.status for request in trace.latest.requests.values()} == {"finished"}
    assert 30 <= trace.last_step <= 150
    assert scenario.opening.step < trace.last_step


@pytest.mark.parametrize("scenario_id", SCENARIOS)
def test_a_recording_has_the_numbers_of_every_lookup_that_the_page_asks_for(scenario_id: str) -> None:
    scenario, trace = SCENARIOS[scenario_id], trace_of(scenario_id)
    asked = 0
    for step in range(1, trace.last_step + 1):
        state = trace.state_at(step)
        for request in state.requests.values():
            if not request.num_computed_tokens or not request.block_table:
                continue
            query, head = request.num_computed_tokens - 1, scenario.heads[step % len(scenario.heads)]
            found = look_up(trace, request.request_id, query, query // 2, scenario.layers[-1], head, as_of=step)
            assert found.physical_block == request.block_table[query // 2 // state.block_size]
            assert found.max_abs_difference < 1e-5  # float32 on both sides, different orders of addition
            asked += 1
    assert asked >= trace.last_step - len(trace.latest.requests)  # in its last step a sequence lets go


def test_a_small_recording_says_which_layers_heads_and_queries_it_keeps() -> None:
    trace = trace_of("first")
    with pytest.raises(LookupFailed, match="keeps the vectors of layer 14, not of 3"):
        look_up(trace, "A", None, 0, 3, 1)
    with pytest.raises(LookupFailed, match="keeps the vectors of query head 1, 4, 7, not of 0"):
        look_up(trace, "A", None, 0, 14, 0)
    with pytest.raises(LookupFailed, match="not of A:3"):
        look_up(trace, "A", 3, 0, 14, 1)


def test_first_shows_three_sequences_of_which_two_share_their_beginning() -> None:
    assert [event.request_id for event in events_of("first", PrefixHit)] == ["C"]
    state = trace_of("first").state_at(44)
    assert [len(r.block_table) > 2 for r in state.requests.values()] == [True] * 3
    assert state.requests["B"].block_table[:2] == state.requests["C"].block_table[:2]
    assert state.num_shared_blocks >= 2


def test_plain_takes_a_block_every_16_tokens_at_scattered_places() -> None:
    taken = events_of("plain", BlockAllocated)
    assert [event.logical_index for event in taken] == list(range(5))
    gaps = [b.block_id - a.block_id for a, b in pairwise(taken)]
    assert 1 not in gaps


def test_shared_prompt_is_computed_once() -> None:
    hits = events_of("shared-prompt", PrefixHit)
    assert [event.request_id for event in hits] == ["B", "C"]
    assert all(event.num_tokens == 32 for event in hits)
    assert max(trace_of("shared-prompt").state_at(10).ref_cnt) == 3


def test_fork_copies_the_part_filled_block_for_all_but_the_last_writer() -> None:
    assert [event.request_id for event in events_of("fork", RequestForked)] == ["B", "C"]
    assert len(events_of("fork", BlockCopied)) == 2
    copied = events_of("fork", BlockCopied)[0]
    assert 1 < copied.num_slots < 16
    trace = trace_of("fork")
    assert len({tuple(token_ids(trace, name)) for name in "ABC"}) == 3


def test_preemption_gives_blocks_back_and_the_sequence_still_finishes() -> None:
    preempted = events_of("preemption", RequestPreempted)
    assert [event.request_id for event in preempted] == ["C"]
    assert preempted[0].needed_by != "C" and preempted[0].num_freed_blocks > 0
    state = trace_of("preemption").state_at(preempted[0].step)
    assert state.requests["C"].block_table == [] and state.requests["C"].num_computed_tokens == 0
    assert [(e.request_id, e.finish_reason) for e in events_of("preemption", RequestFinished)][-1] == ("C", "length")


def test_a_preempted_sequence_says_the_same_as_in_a_large_pool(smollm: LoadedModel) -> None:
    run = SCENARIOS["preemption"].run
    said = []
    for num_blocks in (run.config.num_blocks, 128):
        engine = run_of(smollm, replace(run, config=replace(run.config, num_blocks=num_blocks, capture=False)))
        said.append([engine.output(name).token_ids for name in engine.requests])
        assert bool([e for e in engine.trace.events if isinstance(e, RequestPreempted)]) is (num_blocks < 128)
    assert said[0] == said[1]


def run_of(model: LoadedModel, run) -> Engine:
    session = Session()
    session.begin(model, run)
    session.start()
    for update in session.updates(0.0):
        assert update.problem is None
    assert isinstance(session.engine, Engine)
    return session.engine


def test_a_preempted_sequence_is_looked_up_where_it_was_at_the_step_that_is_shown() -> None:
    trace = trace_of("preemption")
    (gone,) = events_of("preemption", RequestPreempted)
    before = trace.state_at(gone.step - 1).requests["C"]
    query = before.num_computed_tokens - 1
    then = look_up(trace, "C", query, 40, 14, 1, as_of=gone.step - 1)
    later = look_up(trace, "C", query, 40, 14, 1)
    assert then.physical_block == before.block_table[40 // 16]
    assert then.step < gone.step < later.step


def test_chunked_computes_a_long_prompt_beside_a_sequence_that_generates() -> None:
    chunks = [event for event in events_of("chunked", SlotsWritten, "B") if event.start_position < len_of(PAPER)]
    assert len(chunks) >= 5
    assert all(len(event.slots) <= 31 for event in chunks)
    beside = {event.step for event in events_of("chunked", TokenSampled, "A")}
    assert {event.step for event in chunks} <= beside
    assert max(event.num_tokens for event in events_of("chunked", StepTimed)) == 32


def len_of(prompt: str) -> int:
    return next(len(event.token_ids) for event in events_of("chunked", RequestAdded) if event.prompt == prompt)


def test_eviction_loses_a_hit_and_says_why() -> None:
    assert [event.request_id for event in events_of("eviction", PrefixHit)] == ["B", "D"]
    full, rest = events_of("eviction", PrefixHit)
    assert full.num_tokens > rest.num_tokens
    removed = [event.step for event in events_of("eviction", BlockRemoved)]
    (miss,) = events_of("eviction", PrefixMiss, "D")
    assert miss.evicted_step in removed
    assert f"was evicted at step {miss.evicted_step}" in miss.reason
    trace = trace_of("eviction")
    assert token_ids(trace, "A") == token_ids(trace, "B") == token_ids(trace, "D")


def test_block_sizes_say_the_same_and_cost_what_they_cost() -> None:
    measured = SHELF.measured(SCENARIOS["block-size-16"])
    by_size = {m.block_size: m for m in measured.values()}
    assert list(by_size) == [1, 4, 16, 64]
    assert [m.num_blocks * size for size, m in by_size.items()] == [1024] * 4
    assert by_size[1].waste_percent == 0
    wastes, tables = [m.waste_percent for m in by_size.values()], [m.longest_table for m in by_size.values()]
    assert wastes == sorted(wastes) and wastes[-1] > 25
    assert tables == sorted(tables, reverse=True) and tables[0] == 100 and tables[-1] == 2
    hits = [m.hit_tokens for m in by_size.values()]
    assert hits == sorted(hits, reverse=True) and hits[-1] == 0 < hits[-2]
    said = {tuple(map(tuple, (token_ids(trace_of(name), r) for r in "ABC"))) for name in measured}
    assert len(said) == 1
