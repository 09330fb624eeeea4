"""Sessions: one engine a visitor, runs that stop, go on and break off, and what is forgotten when."""

from __future__ import annotations

import threading
import time
import weakref

import pytest

from engine.config import EngineConfig, SamplingParams
from engine.errors import ConfigError, PagewalkError, RequestError
from engine.events import RequestAdded
from engine.limits import Limits
from engine.model_loader import LoadedModel
from engine.run_settings import RunSettings
from engine.session import Session, nonempty
from engine.turns import Turns

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


def settings(*prompts: str, max_tokens: int = 12, **config: int) -> RunSettings:
    return RunSettings(
        prompts or ("abc",), EngineConfig(**config), SamplingParams(max_tokens=max_tokens, ignore_eos=True), False
    )


def finish(session: Session) -> list:
    session.start()
    return [event for update in session.updates(0.0) for event in update.events]


def test_updates_carry_every_event_once_and_in_order(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", "and more"))
    assert finish(session) == session.engine.trace.events
    assert session.engine.step_count == 12 and not session.running
    session.engine.audit()


def test_stop_ends_the_run_within_one_step_and_frees_every_block(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", max_tokens=400))
    session.start()
    while session.engine.step_count < 3:
        time.sleep(0.001)
    session.stop()
    stopped_at = session.engine.step_count
    assert not session.running and stopped_at < 400
    assert sum(session.engine.scheduler.pool.ref_cnt) == 0
    session.engine.audit()
    time.sleep(0.05)
    assert session.engine.step_count == stopped_at


def test_closing_the_follower_stops_the_run(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", max_tokens=400))
    session.start()
    follower = session.updates(0.0)
    next(follower)
    follower.close()
    assert not session.running and sum(session.engine.scheduler.pool.ref_cnt) == 0


def test_step_once_runs_one_pass_and_generate_goes_on_only_with_the_same_settings(tiny: LoadedModel) -> None:
    session, same = Session(), settings("hello", max_tokens=5)
    session.begin(tiny, same)
    for step in (1, 2):
        session.step_once()
        assert session.engine.step_count == step
    assert session.can_continue(tiny, settings("hello", max_tokens=5))
    assert not session.can_continue(tiny, settings("hello", max_tokens=6))
    finish(session)
    assert session.engine.step_count == 5
    assert not session.can_continue(tiny, same)


def test_a_refused_prompt_leaves_the_run_before_it_in_place(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", num_blocks=8))
    finish(session)
    before = list(session.engine.trace.events)
    with pytest.raises(RequestError, match="the pool has 8"):
        session.begin(tiny, settings("x" * 300, num_blocks=8))
    assert session.engine.trace.events == before
    with pytest.raises(RequestError, match="prompt is empty"):
        session.begin(tiny, RunSettings((), EngineConfig(), PARAMS, False))


def test_the_second_run_finds_the_blocks_of_the_first(tiny: LoadedModel) -> None:
    session, same = Session(), settings("a prompt that fills more than one block of sixteen")
    session.begin(tiny, same)
    finish(session)
    first = session.engine
    session.begin(tiny, same)
    finish(session)
    assert session.engine is first
    assert session.engine.output("A").num_cached_tokens == 48
    session.begin(tiny, settings("other", block_size=4))
    assert session.engine is not first


def test_a_fault_in_the_model_is_told_and_the_session_goes_on(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    session.begin(tiny, settings("hello"))
    monkeypatch.setattr(session.engine.runner, "execute", lambda *a, **k: 1 / 0)
    session.start()
    updates = list(session.updates(0.0))
    assert "broke off (ZeroDivisionError)" in updates[-1].problem
    assert sum(session.engine.scheduler.pool.ref_cnt) == 0
    monkeypatch.undo()
    session.begin(tiny, settings("hello"))
    finish(session)
    assert len(session.engine.output("A").token_ids) == 12


def test_two_runs_at_once_are_refused(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", max_tokens=400))
    session.start()
    with pytest.raises(RequestError, match="in progress"):
        session.begin(tiny, settings("again"))
    with pytest.raises(RequestError, match="in progress"):
        session.step_once()
    session.stop()


def test_a_snapshot_holds_exactly_what_the_updates_have_carried(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello"))
    session.start()
    sent: list = []
    for update in session.updates(0.0):
        sent += update.events
        events, number = session.events_so_far()
        assert events == sent and number == session.num_updates


def test_a_run_that_nobody_follows_any_more_is_told_to_its_end(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", max_tokens=400))
    session.step_once()
    session.stop()  # nobody follows a paused run: its blocks are freed between two updates
    events, number = session.events_so_far()
    assert events == session.engine.trace.events and number == session.num_updates == 2
    assert session.events_so_far() == (events, number)


def test_a_lookup_while_a_run_is_busy_never_waits_for_the_model(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    session.begin(tiny, settings("hello", max_tokens=3))
    session.step_once()
    inside, go_on = threading.Event(), threading.Event()
    execute = session.engine.runner.execute

    def slow(*args, **kwargs):
        inside.set()
        assert go_on.wait(30)
        return execute(*args, **kwargs)

    monkeypatch.setattr(session.engine.runner, "execute", slow)
    session.start()
    assert inside.wait(30)
    assert session.engine.lookup("A", None, 2, 0, 0).slot_state == "captured"  # answers although the pass has not ended
    go_on.set()
    session.stop()


def test_only_prompts_with_text_count() -> None:
    assert nonempty(["", " x ", "\n", "y"]) == (" x ", "y")


@pytest.mark.parametrize(
    "limits, wanted, sentence",
    [
        (Limits(max_prompt_chars=4), settings("hello"), "has 5 characters; this host takes 4"),
        (Limits(max_prompt_tokens=3), settings("hello"), "has 5 tokens; this host takes 3"),
        (Limits(max_new_tokens=11), settings("hello"), "12 new tokens were asked for; this host gives 11"),
        (Limits(max_sequences=1), settings("a", "b"), r"2 x 1 sequences were asked for; this host runs 1"),
        (Limits(max_blocks=127), settings("hello"), "128 blocks was asked for; this host gives 127"),
        (Limits(max_pool_mb=1), settings("hello", num_blocks=300), r"300 blocks x 16 takes 2 MiB; this host gives 1 MiB"),
        (Limits(memory_mb=1), settings("hello", num_blocks=300), r"needs 2 MiB .*; 0 of the host's 1 MiB are in use"),
    ],
)
def test_each_limit_refuses_with_its_number(tiny: LoadedModel, limits: Limits, wanted: RunSettings, sentence: str) -> None:
    session = Session(limits)
    with pytest.raises(RequestError, match=sentence):
        session.begin(tiny, wanted)
    assert session.engine is None and session.budget.num_bytes == 0
    session.begin(tiny, settings("a", max_tokens=2, num_blocks=16))
    finish(session)
    assert len(session.engine.output("A").token_ids) == 2


def test_a_refused_run_gives_back_what_it_had_taken(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", num_blocks=8))
    finish(session)
    before = session.budget.num_bytes
    with pytest.raises(RequestError, match="the pool has 16"):
        session.begin(tiny, settings("x" * 300, num_blocks=16))
    assert session.budget.num_bytes == before > 0


def test_what_a_session_holds_is_what_its_pool_and_vectors_take(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", "and more", max_tokens=30))
    finish(session)
    engine = session.engine
    assert engine.capture.num_bytes > 0
    held = session.budget.held(session)
    assert engine.runner.kv_cache.num_bytes + engine.capture.num_bytes <= held
    assert held == engine.runner.kv_cache.num_bytes + engine.capture.budget_bytes


def test_memory_given_up_is_gone_and_the_story_stays(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello"))
    finish(session)
    pool = weakref.ref(session.engine.runner.kv_cache)
    capture = weakref.ref(session.engine.capture)
    events = list(session.trace.events)
    assert session.give_up_memory() and not session.give_up_memory()
    assert pool() is None and capture() is None and session.budget.num_bytes == 0
    assert session.trace.events == events == session.events_so_far()[0]
    with pytest.raises(PagewalkError, match="needed for other visitors"):
        session.lookup("A", None, 0, 0, 0)
    session.begin(tiny, settings("hello"))
    finish(session)
    assert session.lookup("A", None, 2, 0, 0).slot_state == "freed"


def test_a_running_session_gives_up_nothing(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", max_tokens=400))
    session.start()
    assert not session.give_up_memory() and session.engine is not None
    session.stop()


def test_the_engine_of_other_settings_dies_at_once(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello"))
    finish(session)
    old, pool = weakref.ref(session.engine), weakref.ref(session.engine.runner.kv_cache)
    session.begin(tiny, settings("hello", block_size=4))
    assert old() is None and pool() is None


def busy_and_next(tiny: LoadedModel, turns: Turns) -> tuple[Session, Session]:
    """One session whose long run has the only place, and another beside it."""
    first, second = Session(turns=turns), Session(turns=turns)
    first.begin(tiny, settings("hello", max_tokens=400))
    first.start()
    return first, second


def test_a_run_that_waits_tells_its_place_and_then_its_events(tiny: LoadedModel) -> None:
    first, second = busy_and_next(tiny, Turns(max_running=1, turn_seconds=1e9))
    second.begin(tiny, settings("hello", max_tokens=3))
    second.start()
    assert second.place == 1 and second.running
    follower = second.updates(0.0)
    waits = next(follower)
    assert (waits.place, waits.running, [type(event).__name__ for event in waits.events]) == (1, True, ["RequestAdded"])
    first.stop()
    rest = list(follower)
    assert all(update.place == 0 for update in rest) and second.num_updates == 1 + len(rest)
    events = waits.events + [event for update in rest for event in update.events]
    assert events == second.trace.events and not second.running


def test_stopping_a_run_that_waits_needs_no_turn(tiny: LoadedModel) -> None:
    first, second = busy_and_next(tiny, Turns(max_running=1, turn_seconds=1e9))
    second.begin(tiny, settings("hello"))
    second.start()
    second.stop()
    assert not second.running and second.engine.step_count == 0 and first.running
    assert second.engine.output("A").finish_reason == "abort"
    first.stop()


def test_a_run_refused_by_a_full_queue_is_over(tiny: LoadedModel) -> None:
    first, second = busy_and_next(tiny, Turns(max_running=1, max_waiting=0))
    second.begin(tiny, settings("hello"))
    with pytest.raises(RequestError, match="queue is full"):
        second.start()
    assert not second.running and not second.paused
    first.stop()
    second.begin(tiny, settings("hello", max_tokens=2))
    assert finish(second)


def test_a_run_that_is_ended_from_outside_says_why(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", max_tokens=400))
    session.start()
    session.stop("The host is restarting.")
    assert list(session.updates(0.0))[-1].problem == "The host is restarting."


def test_a_run_is_logged_in_one_line_without_a_word_of_it(tiny: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    session = Session()
    session.begin(tiny, settings("a secret"))
    with caplog.at_level("INFO", logger="pagewalk.session"):
        finish(session)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"run session={session.token[:6]} tokens=12 steps=12 ") and line.endswith("finish=length")
    assert "secret" not in line and session.token not in line and session.engine.output("A").text not in line


def test_prompts_arrive_as_many_steps_apart_as_the_settings_say(tiny: LoadedModel) -> None:
    session, params = Session(), SamplingParams(max_tokens=9, ignore_eos=True)
    session.begin(tiny, RunSettings(("a", "b", "c"), EngineConfig(), params, stagger=4))
    events = finish(session)
    assert [e.step for e in events if isinstance(e, RequestAdded)] == [0, 4, 8]
    assert session.engine.step_count == 17 and not session.paused


def test_stop_forgets_the_prompts_that_were_to_come(tiny: LoadedModel) -> None:
    session, params = Session(), SamplingParams(max_tokens=9, ignore_eos=True)
    session.begin(tiny, RunSettings(("a", "b"), EngineConfig(), params, stagger=4))
    session.step_once()
    assert session.paused
    session.stop()
    assert not session.paused and list(session.engine.requests) == ["A"]


@pytest.mark.parametrize("stagger", [-1, 10_001, 1.5, True, None])
def test_an_absurd_stagger_is_refused_by_name(stagger) -> None:
    with pytest.raises(ConfigError, match="steps between prompts"):
        RunSettings(("a",), EngineConfig(), SamplingParams(), stagger=stagger)
